// A shared library imported with { type: "file" }: its path, also inside the compiled binary.

declare module "*.so" {
  const path: string;
  // biome-ignore lint/style/noDefaultExport: the shape Bun gives such an import
  export default path;
}
