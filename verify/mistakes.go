package verify

import "fmt"

// mistake is one known way to get a conversion or a config wrong: its name, the
// stages at which it can be the first divergence, and how to undo it in a trial.
// undo returns what to tell the user, "" if the mistake cannot be there.
type mistake struct {
	id    string
	kinds []string
	undo  func(x *trial) string
}

// mistakes are tried in this order; what can be seen without guessing comes first.
func mistakes(f *failure) []mistake {
	norms := []string{"input_layernorm.output", "post_attention_layernorm.output", lastNorm}
	mlps := []string{"mlp.output", expertsOutput, "mlp.shared_experts.output"}
	list := []mistake{
		{"group-mask", []string{topKIdx}, undoGroups},
		{"norm-topk", []string{topKWeight}, undoNormTopK},
		{"reference", []string{topKWeight, expertsOutput}, undoReference},
		{"routed-scale", []string{topKWeight}, undoScale},
		{"bias-leak", []string{topKWeight}, undoBiasLeak},
		{"aux-loss-form", []string{auxLoss}, undoSeqAux},
		{"aux-loss-counts", []string{auxLoss}, undoCounts},
		{"aux-loss-alpha", []string{auxLoss}, undoAlpha},
		{"gate-up-swapped", mlps, undoGateUp},
		{"expert-order", []string{expertsOutput}, undoLexicographic},
		{"mtp-norms", []string{"enorm.output"}, undoPredictionNorms},
		{"mtp-copy", []string{"enorm.output", predictedLogits}, undoCopies},
		{"mtp-halves", []string{predictedFrom}, undoHalves},
	}
	for _, pair := range f.suspectPairs() {
		list = append(list, mistake{"experts-swapped", []string{expertsOutput}, undoSwapped(pair)})
	}
	list = append(list, []mistake{
		{"router-rows", []string{gateLogits}, undoRouterRows},
		{"rotary-dtype", []string{attended}, undoRotaryDType},
		{"rope-layout", []string{attended}, undoLayout},
		{"rope-scaling", []string{attended}, undoRopeScaling},
		{"padding-mask", []string{attended}, undoPaddingMask},
	}...)
	for _, mscale := range []float64{1, 0.707, 0} {
		list = append(list, mistake{"yarn-mscale", []string{attended}, undoMScale(mscale)})
	}
	for _, proj := range []string{"q_proj", "k_proj", "v_proj", "o_proj"} {
		list = append(list, mistake{"transposed", stageOf(proj), undoTransposed(proj)})
	}
	for _, proj := range []string{"q_proj", "k_proj", "q_b_proj", "kv_a_proj_with_mqa"} {
		list = append(list, mistake{"rope-permutation", stageOf(proj), undoPermuted(proj, true)},
			mistake{"rope-permutation", stageOf(proj), undoPermuted(proj, false)})
	}
	for _, eps := range []float64{1e-5, 1e-6, 1e-8, 1e-12} {
		list = append(list, mistake{"norm-eps", norms, undoEps(eps)})
	}
	for _, theta := range []float64{1e4, 1e5, 5e5, 1e6} {
		list = append(list, mistake{"rope-theta", []string{attended}, undoTheta(theta)})
	}
	return list
}

// stageOf is the stage of a projection of the attention.
func stageOf(proj string) []string { return []string{fmt.Sprintf("self_attn.%s.output", proj)} }
