package diagnose

import (
	"slices"

	"dsmoe/model"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// predictionMistakes are mistakes in the weights of a multi-token prediction layer.
func predictionMistakes(f *Failure) []mistake {
	failed := func(x *Trial) *model.MtpLayer { return &x.Model.Model.MTP[f.Predicts()] }
	var list []mistake
	for _, last := range []bool{false, true} {
		list = append(list, mistake{id: "mtp-token", kinds: []string{"enorm.output", pack.PredictedFrom}, unless: "mtp-token",
			undo: func(x *Trial) string {
				seq, first := x.In.Seq, 1+f.Predicts()
				x.In.InputIDs = slices.Clone(x.In.InputIDs)
				for b := range x.In.Batch {
					of, ids := f.In.InputIDs[b*seq:][:seq], x.In.InputIDs[b*seq:][:seq]
					if copy(ids[1:], of); last {
						ids[first] = of[seq-1]
					}
				}
				return "the reference's prediction layer embeds the token before the one that it should embed: the token itself, " +
					"not the next one"
			}})
	}
	return append(list, []mistake{
		{id: "mtp-carry", kinds: []string{"hnorm.output", pack.PredictedFrom}, undo: func(x *Trial) string {
			k := f.Predicts()
			values, err := f.Pack.Float32s(pack.StageOf(len(x.Model.Model.Layers)-1+k, pack.LayerOutput))
			rows, width := x.In.Seq-k, x.Config.HiddenSize
			if err != nil || len(values) != x.In.Batch*rows*width {
				return ""
			}
			hnorm := failed(x).HNorm.Weight.Name
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.rmsNorm = func(in *bounds.Value, w *model.Weight, eps float64) *bounds.Value {
					if w.Name == hnorm {
						raw := &model.Activation{Shape: in.Shape, DType: in.DType}
						for of := range slices.Chunk(values, rows*width) {
							raw.Values = append(raw.Values, of[:(rows-1)*width]...)
						}
						in = bounds.Exact(raw)
					}
					return a.RMSNorm(in, w, eps)
				}
			})
			if k > 0 {
				return "the reference's prediction layer gets the hidden state of the one before without shared_head.norm"
			}
			return "the reference's prediction layer gets the hidden state without model.norm"
		}},
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
	}...)
}
