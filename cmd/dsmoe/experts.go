package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/inspect"
	"dsmoe/inspect/experts"
	"dsmoe/text"
)

func newInspectExperts() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "experts CHECKPOINT",
		Short: "Look into the experts: norms, ranks, likeness, what is odd",
		Long: `Reads the selected experts and says what each is, how like the others of its layer, and
what is odd about it. Numbers are those that the model computes with: FP8 times its
scales. Beside each stands what independent random weights of that shape would give.

  norm       √Σw² (expert weight norm: MC-Suite, arXiv 2504.05586); --json has
             √(Σw²/n), too
  z          0.6745·(x-median)/MAD of the norm among the layer's routed experts, that of
             the largest magnitude of the three (modified z-score: Iglewicz, Hoaglin
             1993)
  rank       stable rank Σw²/σ₁² (MC-Suite; Rudelson, Vershynin 2007); random rows
             × cols: rows·cols/(√rows+√cols)². σ₁ is the largest singular value
             by 40 steps of Golub-Kahan-Lanczos, from below: random matrices of the real
             widths come out less than 10⁻³ short, those with a gap in their spectrum
             exact to float32
  cos        cosine of the matrix, element by element, with that of the routed expert for
             which its magnitude is largest (Lo and others, A Closer Look into
             Mixture-of-Experts, arXiv 2406.18219); random: 0 ± 1/√(rows·cols). Sums
             are in float32 by 4096 terms: off by at most 3.2·10⁻⁵
  function   cosine of what two experts compute (ours), the largest, and nearest, whose
             it is. Both get 8 inputs of ±1 by a fixed generator, times
             post_attention_layernorm. The order of neurons does not change it, and it
             holds shared experts against routed ones. Random: about 0 ±
             1/√(8·hidden)
  zero_neurons  neurons whose row of gate_proj or up_proj, or column of down_proj, is
                zero
  not_finite    NaN and infinities

--by layer gives medians, and over the pairs of experts the mean magnitude of the cosines
and the largest. --json has all of it, with --similarities the cosines of all pairs.

Findings are on stderr if -o is tsv, csv or md. One is
  duplicate         experts of equal weights, in any layers, whatever the order of
                    neurons: found by hashes of neurons (gate and up rows, down column)
                    and compared whole
  duplicate-matrix  the same of one matrix
  similar-matrix    a cosine of 0.9 in a layer, of experts that are not near duplicates
  near-duplicate    experts of a layer that have a cosine of 0.9 in function or in a
                    matrix, and in all numbers once neurons are matched by what they
                    answer
  same-function     experts of a layer with a cosine of 0.999 in function, though not so
  zeroed            an expert that adds nothing to any token
  zeroed-neurons    1 % of the neurons more that add nothing than in the layer's median
  nan, infinite     numbers that are none
  norm              beyond z 8, and 4 times the layer's median or a quarter of it
  channel           an input of gate and up, or output of down, with 6 times the norm,
                    over the expert's median channel, that it has in the layer's median
                    expert
  neuron            the largest over the expert's median one, 6 times what the layer's
                    median is
  coarse            fewer different magnitudes in runs of 128 numbers of a row than 0.75
                    of the layer's median: as rounding to few bits leaves behind
Routed experts are held against those of their layer that are selected, from 3 on; of
shared ones only zeros, numbers that are none and duplicates are told. Likeness of
weights is not likeness of function on text, and a small norm does not say that an expert
is not needed.

--against ORIGINAL reads both once and gives, instead, √(Σ(a-b)²/Σb²) for each
matrix a and its original b; either may be fused, or of another dtype. A finding (error)
is beyond z 8 and twice the layer's median; not-finite: numbers that are not finite, on a
side, and not the same.

Experts are read twice, those that look alike again. DeepSeekMoE-16B takes about 7
minutes of a core, DeepSeek-V3 about 7 hours, which all cores share. Memory: for each
processor 8 bytes for each number of the largest matrix and 20 MB, for each layer its
experts' 8 outputs and hashes, and as much again for the collector: on 2 processors 300
MB for DeepSeekMoE-16B, about 1 GB for DeepSeek-V3. No number depends on the number of
threads.`,
		Example: `  dsmoe inspect experts fixtures/v1-base/checkpoint
  dsmoe inspect experts --by layer -o md fixtures/v3-fp8/checkpoint
  dsmoe inspect experts --layers 2 --json --similarities fixtures/v3/checkpoint
  dsmoe inspect experts fixtures/v3/checkpoint-fused --against fixtures/v3/checkpoint
  dsmoe inspect experts --plot likeness.svg fixtures/v3/checkpoint`,
		Args:        expect("CHECKPOINT"),
		Annotations: exits("there is no finding", "there are findings"),
	}
	out, selection := addOutput(cmd, text.TSV), addSelection(cmd)
	by := choice{value: string(inspect.ByExpert), words: []string{string(inspect.ByExpert), string(inspect.ByLayer)}}
	cmd.Flags().Var(&by, "by", "a row for each expert, or a few for each layer")
	similarities := cmd.Flags().Bool("similarities", false, "with --json: the cosines of all pairs of experts, too")
	against := cmd.Flags().String("against", "", "only how far each expert is from that of the `original` checkpoint")
	out.plot = addPlot(cmd, "likeness to the nearest by layer and expert; --against: relative errors")
	cmd.RunE = out.plot.around(func(cmd *cobra.Command, args []string) error {
		if *against != "" && (*similarities || cmd.Flags().Changed("by")) {
			return misuse(cmd, "--against goes with neither --by nor --similarities")
		}
		return readWeights(cmd, args[0], func(w inspect.Weights) error {
			if *against != "" {
				return expertsAgainst(cmd, w, *against, *selection, out)
			}
			r, err := experts.Examine(cmd.Context(), w, experts.Options{Selection: *selection, Similarities: *similarities, By: inspect.Grouping(by.value)})
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return out.judge(cmd, r, r.Findings)
		})
	})
	return cmd
}

// expertsAgainst compares experts with their originals.
func expertsAgainst(cmd *cobra.Command, w inspect.Weights, original string, s inspect.Selection, out *output) error {
	b, c, err := openWeights(original)
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := experts.Against(cmd.Context(), w, b, s)
	if err != nil {
		return fmt.Errorf("%s against %s: %w", text.Quote(w.Path), text.Quote(original), err)
	}
	return out.judge(cmd, r, r.Findings)
}
