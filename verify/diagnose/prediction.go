package diagnose

import (
	"slices"

	"dsmoe/model"
	"dsmoe/verify/pack"
)

// Mistakes in the weights of a multi-token prediction layer.

// prediction is the failed prediction layer.
func (x *Trial) prediction() *model.MtpLayer { return &x.Model.Model.MTP[x.failed.Predicts()] }

// undoPredictionNorms exchanges the norms of the embedding and of the hidden state.
func undoPredictionNorms(x *Trial) string {
	layer := x.prediction()
	layer.ENorm, layer.HNorm = layer.HNorm, layer.ENorm
	return "enorm and hnorm are exchanged"
}

// undoCopies takes the model's embedding and head for the layer's own.
func undoCopies(x *Trial) string {
	layer, copied := x.prediction(), x.prediction().SharedHead.Head.Weight.Name
	if x.failed.Kind != pack.PredictedLogits {
		copied = layer.EmbedTokens.Name
	}
	layer.EmbedTokens, layer.SharedHead.Head = x.Model.Model.EmbedTokens, x.Model.LMHead
	return copied + " is not the model's own, which the reference took"
}

// undoHalves exchanges the columns of eh_proj that are for the embedding with those for the
// hidden state.
func undoHalves(x *Trial) string {
	w := &x.prediction().EHProj.Weight
	if w.Scales != nil {
		return "" // columns would leave their blocks
	}
	data, n := make([]byte, 0, len(w.Data)), len(w.Data)/w.Shape[0]
	for row := range slices.Chunk(w.Data, n) {
		data = append(append(data, row[n/2:]...), row[:n/2]...)
	}
	w.Data = data
	return "the halves of eh_proj, for the embedding and for the hidden state, are exchanged"
}
