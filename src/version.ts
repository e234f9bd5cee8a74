// The version (package.json) and the build: `caldrix --version` prints both.

import { version } from "../package.json";

/** Put in place by build.ts: the commit the executable was made from. */
declare const CALDRIX_BUILD: string | undefined;

export const VERSION: string = version;
export const BUILD: string = typeof CALDRIX_BUILD === "undefined" ? "sources" : CALDRIX_BUILD;
