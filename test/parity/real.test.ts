// The two real GGUFs against transformers on their exactly dequantised weights: top logits and greedy
// tokens in the reference mode, the likelihood of a text in both modes. The set-up of `npm test` has
// fetched the files; CALDRIX_TEST_F32_NLL=1 adds the text in the reference mode (a minute a model).

import { describe, expect, test } from "bun:test";
import { openModel } from "../../src/model/open.ts";
import { loadLibrary } from "../../src/native/library.ts";
import { fixture } from "../support/fixtures.ts";
import { argmax, negativeLogLikelihood, type RealGolden, readGolden } from "../support/golden.ts";
import { modelPath } from "../support/models.ts";
import { Runner } from "../support/runner.ts";

/** fixtures/README.md, "Tolerances". */
const CLOSE_CALL = 0.02;
const F32_MEAN_NLL = 5e-4;
const F32_TOKEN_NLL = 5e-3;
const FAST_MEAN_NLL = 0.01;
const FAST_AGREEMENT = 0.95;
const TIMEOUT_MS = 120_000;

const library = await loadLibrary();
const models = [
  { name: "smollm2-135m-instruct", golden: "smollm2", logitError: 5e-3 },
  { name: "gemma-3-270m", golden: "gemma3", logitError: 1e-2 },
] as const;

describe.each(models)("$name", ({ name, golden, logitError }) => {
  const wanted = readGolden<RealGolden>(fixture("real", `${golden}.golden.json`));

  test(
    "float32 activations give the reference's logits, and its tokens up to the first close call",
    async () => {
      const runner = new Runner(library, await openModel(modelPath(name)), { activations: "f32" });
      for (const prompt of wanted.prompts) {
        const n = prompt.ids.length;
        const close = prompt.greedy_gaps.findIndex((gap) => gap < CLOSE_CALL);
        const sure = close < 0 ? prompt.greedy_ids.length : close;
        const logits = runner.all([...prompt.ids, ...prompt.greedy_ids.slice(0, sure)]);
        for (const [k, id] of prompt.top50_ids.entries()) {
          const error = Math.abs(logits[n - 1]![id]! - prompt.top50_logits[k]!);
          expect(error).toBeLessThan(logitError);
        }
        const greedy = logits.slice(n - 1, n - 1 + sure).map(argmax);
        expect(greedy).toEqual(prompt.greedy_ids.slice(0, sure));
      }
      runner.close();
    },
    TIMEOUT_MS,
  );

  test(
    "the fast mode keeps the likelihood of a text and the reference's choices",
    async () => {
      const runner = new Runner(library, await openModel(modelPath(name)), { activations: "fast" });
      const { mean } = likelihood(runner, wanted.nll);
      expect(Math.abs(mean - wanted.nll.mean_nll)).toBeLessThan(FAST_MEAN_NLL);
      let same = 0;
      let steps = 0;
      for (const prompt of wanted.prompts) {
        const n = prompt.ids.length;
        const logits = runner.all([...prompt.ids, ...prompt.greedy_ids.slice(0, -1)]);
        for (const [k, id] of prompt.greedy_ids.entries()) {
          same += argmax(logits[n - 1 + k]!) === id ? 1 : 0;
          steps++;
        }
      }
      runner.close();
      expect(same / steps).toBeGreaterThanOrEqual(FAST_AGREEMENT);
    },
    TIMEOUT_MS,
  );

  if (process.env.CALDRIX_TEST_F32_NLL === "1")
    test(
      "float32 activations give the likelihood of every token of a text",
      async () => {
        const runner = new Runner(library, await openModel(modelPath(name)), {
          activations: "f32",
        });
        const { mean, perToken } = likelihood(runner, wanted.nll);
        runner.close();
        expect(Math.abs(mean - wanted.nll.mean_nll)).toBeLessThan(F32_MEAN_NLL);
        for (const [k, nll] of wanted.nll.per_token.entries()) {
          expect(Math.abs(perToken[k]! - nll)).toBeLessThan(F32_TOKEN_NLL);
        }
      },
      TIMEOUT_MS,
    );
});

/** NLL of each token of a text but the first, given what stands before it. */
function likelihood(
  runner: Runner,
  text: RealGolden["nll"],
): { readonly mean: number; readonly perToken: readonly number[] } {
  const { ids } = text;
  const perToken: number[] = [];
  runner.engine.rowTrim(0, 0);
  runner.run(ids.slice(0, -1), 0, 0, (pos, logits) => {
    perToken.push(negativeLogLikelihood(logits, ids[pos + 1]!));
  });
  return { mean: perToken.reduce((a, b) => a + b, 0) / perToken.length, perToken };
}
