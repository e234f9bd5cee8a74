// Replies on the wire: JSON bodies and SSE frames, as strings. Pure functions, keys in alphabetical
// order as in the contract's captured exchanges. Called by generate.ts; knows no socket and no engine.

export type FinishReason = "stop" | "length";

/** What every object of one reply repeats. */
export interface ReplyHead {
  readonly id: string;
  /** Unix seconds. */
  readonly created: number;
  readonly model: string;
}

export interface Usage {
  readonly promptTokens: number;
  readonly completionTokens: number;
}

/** Token ids to show, or null when the request did not ask for them. */
export type ShownIds = readonly number[] | null;

/** How one route writes its replies. */
export interface ReplyFormat {
  readonly idPrefix: string;
  whole(head: ReplyHead, text: string, reason: FinishReason, ids: ShownIds, usage: Usage): string;
  /** The frame writers of one stream; what its frames share is written once. */
  frames(head: ReplyHead): FrameWriters;
}

export interface FrameWriters {
  /** A piece of text; never empty. */
  text(text: string, ids: ShownIds): string;
  /** The end of the text; `ids` are those no text frame could carry. */
  finish(reason: FinishReason, ids: ShownIds): string;
  usage(usage: Usage): string;
}

/** Ends every stream that did not fail. */
const DONE_FRAME = "data: [DONE]\n\n";

/** A comment: keeps clients and proxies from cutting a stream that is silent for long. */
export const WAITING_FRAME = ": waiting\n\n";

export const CHAT_FORMAT: ReplyFormat = {
  idPrefix: "chatcmpl-",
  whole(head, text, reason, ids, usage) {
    const message = `"message":{"content":${JSON.stringify(text)},"role":"assistant"}`;
    const choice = `{"finish_reason":"${reason}","index":0,${message}${idsText(ids)}}`;
    return bodyText(choice, head, "chat.completion", usage);
  },
  frames: (head) =>
    frameWriters(head, "chat.completion.chunk", (text, reason, ids) => {
      const delta = text === "" ? "{}" : `{"content":${JSON.stringify(text)}}`;
      return `{"delta":${delta},"finish_reason":${reason},"index":0${idsText(ids)}}`;
    }),
};

export const COMPLETION_FORMAT: ReplyFormat = {
  idPrefix: "cmpl-",
  whole(head, text, reason, ids, usage) {
    const value = JSON.stringify(text);
    const choice = `{"finish_reason":"${reason}","index":0,"text":${value}${idsText(ids)}}`;
    return bodyText(choice, head, "text_completion", usage);
  },
  frames: (head) =>
    frameWriters(head, "text_completion", (text, reason, ids) => {
      const value = JSON.stringify(text);
      return `{"finish_reason":${reason},"index":0,"text":${value}${idsText(ids)}}`;
    }),
};

/**
 * The frames that end a stream: finish, usage when it is wanted, done. The strict mode's contract puts
 * the usage before the finish.
 */
export function endFrames(
  frames: FrameWriters,
  reason: FinishReason,
  ids: ShownIds,
  usage: Usage | null,
  usageFirst: boolean,
): string {
  const counts = usage === null ? "" : frames.usage(usage);
  const finish = frames.finish(reason, ids);
  return (usageFirst ? counts + finish : finish + counts) + DONE_FRAME;
}

/** A frame around a whole JSON object, such as an error body. */
export function dataFrame(json: string): string {
  return `data: ${json}\n\n`;
}

/** The answer of GET /v1/models. */
export function modelsBody(servedName: string): string {
  const id = JSON.stringify(servedName);
  return `{"data":[{"id":${id},"object":"model","owned_by":"inferno"}],"object":"list"}`;
}

/** The three counts as a JSON object. */
export function usageObject({ promptTokens, completionTokens }: Usage): string {
  const total = promptTokens + completionTokens;
  const counts = `"completion_tokens":${completionTokens},"prompt_tokens":${promptTokens}`;
  return `{${counts},"total_tokens":${total}}`;
}

function frameWriters(
  head: ReplyHead,
  object: string,
  choice: (text: string, reason: string, ids: ShownIds) => string,
): FrameWriters {
  const tail = headText(head, object);
  const frame = (text: string, reason: string, ids: ShownIds): string =>
    `data: {"choices":[${choice(text, reason, ids)}],${tail}}\n\n`;
  return {
    text: (text, ids) => frame(text, "null", ids),
    finish: (reason, ids) => frame("", `"${reason}"`, ids),
    usage: (usage) => `data: {"choices":[],${tail},${usageText(usage)}}\n\n`,
  };
}

function bodyText(choice: string, head: ReplyHead, object: string, usage: Usage): string {
  return `{"choices":[${choice}],${headText(head, object)},${usageText(usage)}}`;
}

function headText(head: ReplyHead, object: string): string {
  const { created, id, model } = head;
  return `"created":${created},"id":"${id}","model":${JSON.stringify(model)},"object":"${object}"`;
}

function idsText(ids: ShownIds): string {
  return ids === null ? "" : `,"token_ids":[${ids.join(",")}]`;
}

function usageText(usage: Usage): string {
  return `"usage":${usageObject(usage)}`;
}
