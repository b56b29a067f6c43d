package diagnose

import (
	"slices"

	"dsmoe/model"
	"dsmoe/verify/pack"
)

// predictionMistakes are mistakes in the weights of a multi-token prediction layer.
func predictionMistakes(f *Failure) []mistake {
	failed := func(x *Trial) *model.MtpLayer { return &x.Model.Model.MTP[f.Predicts()] }
	return []mistake{
		{id: "mtp-norms", kinds: []string{"enorm.output"}, undo: func(x *Trial) string {
			layer := failed(x)
			layer.ENorm, layer.HNorm = layer.HNorm, layer.ENorm
			return "enorm and hnorm are exchanged"
		}},
		{id: "mtp-copy", kinds: []string{"enorm.output", pack.PredictedLogits}, undo: func(x *Trial) string {
			layer := failed(x)
			copied := layer.SharedHead.Head.Weight.Name
			if f.Kind != pack.PredictedLogits {
				copied = layer.EmbedTokens.Name
			}
			layer.EmbedTokens, layer.SharedHead.Head = x.Model.Model.EmbedTokens, x.Model.LMHead
			return copied + " is not the model's own, which the reference took"
		}},
		{id: "mtp-halves", kinds: []string{pack.PredictedFrom}, undo: func(x *Trial) string {
			w := &failed(x).EHProj.Weight
			if w.Scales != nil {
				return "" // columns would leave their blocks
			}
			data, n := make([]byte, 0, len(w.Data)), len(w.Data)/w.Shape[0]
			for row := range slices.Chunk(w.Data, n) {
				data = append(append(data, row[n/2:]...), row[:n/2]...)
			}
			w.Data = data
			return "the halves of eh_proj, for the embedding and for the hidden state, are exchanged"
		}},
	}
}
