// What the scripted tests ask of every client library: one small interface, which each library's file
// implements in the way its own documentation shows. Used by clients.test.ts alone.

export const MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct";

export interface Ask {
  readonly user: string;
  readonly system?: string;
  readonly maxTokens: number;
  readonly stop?: string;
  readonly temperature?: number;
  readonly topP?: number;
  readonly seed?: number;
}

/** A reply as the library hands it to its user. */
export interface Answer {
  readonly text: string;
  readonly finish: string | null;
  readonly promptTokens: number;
  readonly completionTokens: number;
}

export interface StreamedAnswer extends Answer {
  /** Pieces of text that arrived. */
  readonly pieces: number;
}

/** Features that the libraries offer and the server refuses; `responses` is another route. */
export type Feature = "tools" | "response_format" | "responses";

/** The error a library threw, in the fields its users look at. */
export interface Thrown {
  readonly name: string;
  readonly status: number;
  readonly param: string | null;
  readonly message: string;
}

export interface Client {
  /** A whole reply, asked for with every field the library can fill in, each at its neutral value. */
  chat(ask: Ask): Promise<Answer>;
  /** A streamed reply with its usage, asked for with the library's own defaults. */
  stream(ask: Ask): Promise<StreamedAnswer>;
  /** Reads this many pieces of a streamed reply and leaves. */
  abandon(ask: Ask, pieces: number): Promise<void>;
  /** The error of a chat with these settings, tried once. */
  refusedChat(ask: Ask): Promise<Thrown>;
  /** The error of using a feature that is not there. */
  refusedFeature(feature: Feature): Promise<Thrown>;
}

/** A function of no arguments for the tools' and a shape for the objects' refusals. */
export const EMPTY_SCHEMA = {
  type: "object",
  properties: {},
  additionalProperties: false,
} as const;

/** What a promise was rejected with. @throws Error when it was fulfilled */
export async function rejection(promise: PromiseLike<unknown>): Promise<unknown> {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("the server took what it must refuse");
}
