package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/inspect"
	"dsmoe/inspect/router"
	"dsmoe/text"
)

func newInspectRouter() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "router CHECKPOINT",
		Short: "Look into the routers: norms, likeness, bounds, what is odd",
		Long: `Reads the routers, mlp.gate.weight [experts, hidden], and says how their rows, one for
each expert, stand to each other, and what they allow. Without --coupling no expert is
read.

  norm       √Σr² of a row (router weight norm: MC-Suite, arXiv 2504.05586), and z
             its modified z-score 0.6745·(x-median)/MAD in the layer (Iglewicz, Hoaglin
             1993)
  cosine     of the row with the one, nearest, for which its magnitude is largest (Lo and
             others, A Closer Look into Mixture-of-Experts, arXiv 2406.18219); random: 0
             ± 1/√hidden
  max_logit  √hidden·‖r∘w‖₂, w the weight of post_attention_layernorm: the
             input of a router is n∘w with ‖n‖₂ ≤ √hidden, so that no token's
             logit is larger, of either sign (Cauchy-Schwarz), and some hidden state
             comes as near to it as rms_norm_eps lets
  bias       e_score_correction_bias (DeepSeek-V3, arXiv 2412.19437)
  proven     never or always chosen, whatever the token. The score is within
             σ(±max_logit)+bias, or [0, 1]+bias with softmax; never:
             num_experts_per_tok others that come with its group are above it, or
             topk_group groups above its own, by the sums of their two best; always: the
             reverse. 2⁻⁷ of max_logit and 1e-4 are left for rounding
  condition  largest over smallest singular value; random: (1+√(e/h))/(1-√(e/h)) for
             e experts and h hidden. mergekit warns above 5; rows that share a direction
             are above that, too, so that it is no finding here
  coupling   --coupling: whether each expert's gate_proj answers most to its own row, by
             ‖W_e·(r_f-mean r)‖²/‖r_f-mean r‖² over its medians (after arXiv
             2406.18219: gate_proj goes with the router). own: at least half of the
             experts, and rows, are each other's best at z 6 and with their own number;
             permuted: two or more with others; not measurable: fewer, as with random
             weights; not looked at: below 8 experts

What is proven holds for every token. The reverse does not: an expert that no text
reaches need not be proven so. Without a bias (DeepSeekMoE-16B, V2) these bounds prove
nothing, since the logits of the hidden state -h are those of h turned round; other
arguments are not tried. Coupling is a check on conversions that number rows and experts
apart: of a small mixture of 16 experts, trained for that, all fitted their own rows by
this formula. Where it is not measurable it says nothing.

Findings are on stderr if -o is tsv, csv or md. One is
  dead-row            all zero: the logit is 0 for every token
  row-norm            beyond z 8 and 4 times the layer's median, or a quarter of it
  duplicate-row       rows that are equal
  near-duplicate-row  a cosine of 0.99, with norms within 10 %
  never-chosen        see proven
  always-chosen       see proven
  not-finite          NaN or infinite numbers, in a row or a bias
  permuted            see coupling

Memory is that of the routers in float32, and with --coupling 8 bytes for each number of
a gate_proj for each processor. DeepSeek-V3's routers are 430 MB; with --coupling its
experts' gate_proj are read, a third of the weights, for about an hour of a core. No
number depends on the number of threads.`,
		Example: `  dsmoe inspect router fixtures/v1-base/checkpoint
  dsmoe inspect router --by layer --coupling fixtures/v3/checkpoint
  dsmoe inspect router --layers 1 --json fixtures/v3-fp8/checkpoint
  dsmoe inspect router --plot rows.svg fixtures/v3/checkpoint`,
		Args:        expect("CHECKPOINT"),
		Annotations: exits("there is no finding", "there are findings"),
	}
	out, selection := addOutput(cmd, text.TSV), addSelection(cmd)
	cmd.Flags().MarkHidden("experts") // it is refused
	by := choice{value: string(inspect.ByExpert), words: []string{string(inspect.ByExpert), string(inspect.ByLayer)}}
	cmd.Flags().Var(&by, "by", "a row for each expert, or for each layer")
	coupling := cmd.Flags().Bool("coupling", false, "hold the rows against gate_proj of the experts, too, which are read")
	out.plot = addPlot(cmd, "norms of the rows by layer and expert")
	cmd.RunE = out.plot.around(func(cmd *cobra.Command, args []string) error {
		return readWeights(cmd, args[0], func(w inspect.Weights) error {
			r, err := router.Examine(cmd.Context(), w, router.Options{Selection: *selection, Coupling: *coupling, By: inspect.Grouping(by.value)})
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return out.judge(cmd, r, r.Findings)
		})
	})
	return cmd
}
