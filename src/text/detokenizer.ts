// Token ids to text while they arrive. Bytes of a character may be spread over several tokens, so
// an unfinished character waits. Called for each generated token by the API and the terminal.
import type { Detokenizer, Tokenizer } from "./types.ts";

/**
 * A detokenizer for one reply. Joined, its pushes and its end are what decoding all bytes at once
 * gives; bytes that never become a character are U+FFFD, by the rules of TextDecoder.
 */
export function createDetokenizer(tokenizer: Tokenizer): Detokenizer {
  // A reply that begins with U+FEFF keeps it.
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  return {
    push(id) {
      const bytes = tokenizer.pieceBytes(id);
      return bytes.length === 0 ? "" : decoder.decode(bytes, { stream: true });
    },
    end: () => decoder.decode(),
  };
}
