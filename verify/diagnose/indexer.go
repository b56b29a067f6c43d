package diagnose

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Mistakes of indexers, and of the norm that their queries come from.

// indexerMistakes are first seen in stages of an indexer, or of a norm inside latent attention.
func indexerMistakes(f *Failure) []mistake {
	scores := []string{pack.IndexerScores, pack.EntriesScores}
	list := []mistake{
		{id: "indexer-norm-bias", kinds: []string{pack.InIndexer(table.KNorm)}, undo: undoNormBias},
		{id: "indexer-rope-layout", kinds: []string{pack.IndexerQueries}, undo: func(x *Trial) string {
			if !x.Config.HasIndexer() || x.Config.Windowed() {
				return ""
			}
			x.Config = *x.Config.WithRules(func(r *config.Rules) { r.RoPE.IndexerInterleaves = !r.RoPE.IndexerInterleaves })
			theirs, ours := "interleaved pairs, as GLM-5 does", "halves, as DeepSeek-V3.2 does"
			if !x.Config.Rules().RoPE.IndexerInterleaves {
				theirs, ours = ours, theirs
			}
			return fmt.Sprintf("the reference's indexer rotates %s, here %s", theirs, ours)
		}},
		{id: "indexer-relu", kinds: scores, undo: func(x *Trial) string {
			if !x.Config.HasIndexer() {
				return ""
			}
			x.change(func(a bounds.Arithmetic, o *operations) { o.relu = func(x *bounds.Value) *bounds.Value { return x } })
			return "the reference added the heads' scores without ReLU"
		}},
		{id: "indexer-head-scale", kinds: scores, undo: func(x *Trial) string {
			if !x.Config.HasIndexer() || x.Config.Indexer.IndexNHeads == 1 {
				return ""
			}
			by := float32(math.Sqrt(float64(x.Config.Indexer.IndexNHeads)))
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.indexScores = func(weights, s *bounds.Value, first int, mask *model.Mask) *bounds.Value {
					return a.IndexScores(a.Scale(weights, by), s, first, mask)
				}
			})
			return "the reference left the factor 1/√index_n_heads of the heads' weights out"
		}},
		{id: "index-topk", kinds: []string{pack.IndexerTopK, pack.EntriesTopK}, undo: func(x *Trial) string {
			n := x.failed.goldenWidth()
			if n == 0 {
				return ""
			}
			return ran("index_topk", &x.Config.Indexer.IndexTopK, n)
		}},
	}
	for _, of := range [][2]bool{{true, true}, {true, false}, {false, true}} {
		list = append(list, mistake{id: "latent-eps", unless: "latent-eps", undo: undoLatentEps(of[0], of[1]),
			kinds: []string{pack.InAttention(table.QALayernorm), pack.InAttention(table.KVALayernorm)}})
	}
	for l, d := range f.Model.Model.Layers {
		list = append(list, mistake{id: "indexer-layer", kinds: []string{pack.InIndexer(table.WQB)},
			unless: "layers-exchanged", undo: func(x *Trial) string {
				if x.layer == nil || x.layer.Indexer == nil || l == f.Layer || !slices.Contains(f.Layers, l) ||
					d.Indexer == nil {
					return ""
				}
				x.layer.Indexer = d.Indexer
				return fmt.Sprintf("the indexer of model.layers.%d is not its own: with that of model.layers.%d it is right",
					f.Layer, l)
			}})
	}
	return list
}

// undoLatentEps gives norms inside latent attention, of queries, of keys or of both, the eps of the config.
func undoLatentEps(queries, keys bool) func(x *Trial) string {
	return func(x *Trial) string {
		if x.layer == nil || x.layer.MLA == nil {
			return ""
		}
		a := x.layer.MLA
		was, is := a.KVALayernorm.VarianceEpsilon, x.Config.RMSNormEps
		if queries {
			was = a.QALayernorm.VarianceEpsilon
			a.QALayernorm.VarianceEpsilon = 0
		}
		if keys {
			a.KVALayernorm.VarianceEpsilon = 0
		}
		if was == is {
			return ""
		}
		return fmt.Sprintf("the reference computed norms inside latent attention with rms_norm_eps %g; here they have %g, "+
			"whatever config.json says, as in transformers' class", is, was)
	}
}

// undoNormBias takes the bias of the indexer's norm from the golden: each column is off by one number, the mean or, of
// a rounded golden, a number within the rounding of all rows.
func undoNormBias(x *Trial) string {
	f := x.failed
	bias := &x.layer.Indexer.KNorm.Bias
	values, err := bias.Float32s(nil)
	if err != nil || f.Got == nil || len(values) != f.Got.Width() || f.distinctRows() < leastFactorRows {
		return ""
	}
	p, rows := bounds.PrecisionOf(f.Got.DType), f.Got.Rows()
	zero := !slices.ContainsFunc(values, func(v float32) bool { return v != 0 })
	bias.Tensor = vectorOf(values, func(c int, v float32) float32 {
		sum, least, most := 0.0, math.Inf(-1), math.Inf(1)
		for i := c; i < len(f.Want); i += len(values) {
			by, half := f.residual(i), p.Ulp(float64(f.Want[i]))/2
			sum, least, most = sum+by, max(least, by-half), min(most, by+half)
		}
		off := (least + most) / 2
		if f.Got.DType == tensor.F32 || least > most {
			off = sum / float64(rows)
		}
		return tensor.Rounded(float32(float64(v)+off), bias.DType)
	})
	if zero {
		return bias.Name + " is zero, and the reference's is not"
	}
	return bias.Name + " is not the reference's: each channel is off by one number"
}
