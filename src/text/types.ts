// What the rest of caldrix knows of text: tokens, pieces and a chat template.
// Implementations: tokenizer.ts, detokenizer.ts, stop.ts, template.ts.

/** One chat message as the template sees it; content is already one string. */
export interface ChatMessage {
  readonly role: string;
  readonly content: string;
}

export interface Tokenizer {
  /** Ids a text can become: every id is in [0, vocabSize). */
  readonly vocabSize: number;
  readonly bosId: number | null;
  /** Upper bound of the bytes one token can stand for; lets long text be refused untokenised. */
  readonly longestTokenBytes: number;
  /** The same without what normalizing may shrink: the longest entry of the vocabulary. */
  readonly longestEntryBytes: number;
  /**
   * Token ids of a text. Text that spells a special token becomes that token.
   * @param addSpecial add what the tokenizer's own post-processor adds (BOS): true for raw
   *   prompts, false for rendered chat templates, which write their own.
   */
  encode(text: string, addSpecial: boolean): Int32Array;
  /**
   * Bytes that token `id` stands for in generated text; empty for special tokens and for ids
   * outside the vocabulary. Concatenated pieces may form UTF-8 characters only together.
   */
  pieceBytes(id: number): Uint8Array;
  /** Id of a token by its exact text in the vocabulary, or null. */
  idOf(token: string): number | null;
}

export interface ChatTemplate {
  /** Length of the template text in UTF-8 bytes. */
  readonly bytes: number;
  /**
   * The prompt for a conversation, ending where the assistant's answer begins.
   * When the template refuses a system message its text is put on top of the first user message.
   * @throws ApiError 400 at messages[i].role for a role the template does not take.
   */
  render(
    messages: readonly ChatMessage[],
    options?: { readonly thinking?: boolean },
  ): { readonly prompt: string; readonly systemFolded: boolean };
}

/** Ids to text, UTF-8 safe: what cannot be a whole character yet is held back. */
export interface Detokenizer {
  push(id: number): string;
  /** What was held back, as replacement characters when it never became whole. */
  end(): string;
}

/** Finds the earliest of up to four stop strings; holds back only what could begin one. */
export interface StopMatcher {
  /** Text that may be sent now; stopped = a stop string was found (text ends before it). */
  push(text: string): { readonly text: string; readonly stopped: boolean };
  end(): string;
}
