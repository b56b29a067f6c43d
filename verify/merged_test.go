package verify

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// edited is a source in which some tensors have other numbers.
type edited struct {
	weights.Source
	tensors map[string]tensor.Tensor
}

// Tensor returns the edited tensor, or the source's.
func (e edited) Tensor(name string) (tensor.Tensor, error) {
	if t, is := e.tensors[name]; is {
		return t, nil
	}
	return e.Source.Tensor(name)
}

// lora adds matrices of a rank and of a share of the weight's size to the weights, several times, and rounds to BF16.
// Which is of which weight, seed and the place in names tell.
func lora(t *testing.T, src weights.Source, rank int, share float64, times int, seed uint64, names ...string) edited {
	e := edited{src, map[string]tensor.Tensor{}}
	for n, name := range names {
		w, err := src.Tensor(name)
		require.NoError(t, err)
		values, err := w.Float32s(nil)
		require.NoError(t, err)
		size, rng := 0.0, rand.New(rand.NewPCG(seed, uint64(n)))
		for _, v := range values {
			size += float64(v) * float64(v) / float64(len(values))
		}
		by := share * math.Sqrt(size/float64(rank))
		for range rank {
			a, b := make([]float64, w.Shape[0]), make([]float64, w.Shape[1])
			for _, v := range [][]float64{a, b} {
				for i := range v {
					v[i] = rng.NormFloat64()
				}
			}
			for i := range values {
				values[i] += float32(float64(times) * by * a[i/len(b)] * b[i%len(b)])
			}
		}
		x := tensor.Tensor{DType: tensor.BF16, Shape: w.Shape}
		for _, v := range values {
			x.Data = binary.LittleEndian.AppendUint16(x.Data, uint16(math.Float32bits(tensor.Rounded(v, tensor.BF16))>>16))
		}
		e.tensors[name] = x
	}
	return e
}

// TestMergedLoRA_every: a LoRA that one side lacks, has twice, or has of another module, merged into one or several matrices of
// a layer that are stored in BF16, is named with its ranks. So it is in experts with enough tokens, where the pack has
// their stages; differences of full rank are not taken for one.
func TestMergedLoRA_every(t *testing.T) {
	const layer = "model.layers.2."
	attention := []string{layer + "self_attn.q_a_proj.weight", layer + "self_attn.q_b_proj.weight",
		layer + "self_attn.kv_a_proj_with_mqa.weight", layer + "self_attn.kv_b_proj.weight", layer + "self_attn.o_proj.weight"}
	c, err := checkpoint.Open(filepath.Join("..", "fixtures", "v3", "checkpoint"))
	require.NoError(t, err)
	defer c.Close()
	in := &model.Input{Batch: 1, Seq: 96}
	rng := rand.New(rand.NewPCG(3, 4))
	for range in.Seq {
		in.InputIDs = append(in.InputIDs, rng.IntN(c.Config.VocabSize))
	}
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
		if d == tensor.F32 && !configtest.Every(t) {
			continue
		}
		reference := recorded(t, c.Config, c, in, d)
		idx, err := reference.Ints(layer + pack.TopKIdx)
		require.NoError(t, err)
		var reached, all []string // experts' weights
		for e := range c.Config.MoE.NRoutedExperts {
			tokens := 0
			for _, chosen := range idx {
				if chosen == e {
					tokens++
				}
			}
			for _, p := range []string{"gate", "up", "down"} {
				name := fmt.Sprintf("%smlp.experts.%d.%s_proj.weight", layer, e, p)
				if all = append(all, name); tokens >= 12 {
					reached = append(reached, name)
				}
			}
		}
		require.Greater(t, len(reached), 30)
		merged := recorded(t, c.Config, lora(t, c, 2, .02, 1, 1, attention...), in, d)
		single := recorded(t, c.Config, lora(t, c, 1, .02, 1, 1, attention...), in, d)
		for name, test := range map[string]struct {
			golden *pack.Pack
			ours   weights.Source
			ranks  int // how often one is named; 0: none is
			hint   bool
		}{
			"merged":          {reference, lora(t, c, 2, .02, 1, 1, attention...), 5, false},
			"one":             {reference, lora(t, c, 2, .02, 1, 1, attention[4]), 1, false},
			"missing":         {merged, c, 5, false},
			"doubled":         {merged, lora(t, c, 2, .02, 2, 1, attention...), 5, false},
			"mispaired":       {single, lora(t, c, 1, .02, 1, 2, attention...), 5, false},
			"experts":         {reference, lora(t, c, 2, .1, 1, 1, reached...), 10, false},
			"all experts":     {reference, lora(t, c, 2, .1, 1, 1, all...), 10, true},
			"of a large rank": {reference, lora(t, c, 40, .02, 1, 1, attention...), 0, false},
		} {
			if test.golden == merged && !configtest.Every(t) {
				continue
			}
			r, err := Run(context.Background(), c.Config, test.ours, test.golden, Options{})
			require.NoError(t, err)
			require.Equal(t, report.Fail, r.Verdict, name)
			found := slices.Concat(r.Causes, r.Hints)
			if test.ranks == 0 {
				require.False(t, slices.ContainsFunc(found, func(c report.Cause) bool { return c.ID == "low-rank" }), "%s: %v", name, found)
				continue
			}
			require.Len(t, found, 1, name)
			require.Equal(t, test.hint, len(r.Hints) == 1, name)
			require.Equal(t, "low-rank", found[0].ID, name)
			require.Equal(t, test.ranks, strings.Count(found[0].Text, "rank 2"), "%s: %s", name, found[0].Text)
			require.Equal(t, d == tensor.F32, strings.Contains(found[0].Text, "by no more than roundings to BF16"), name)
		}
	}
}

// TestMergedLoRAOfTheEmbedding_every: a LoRA that was merged into the embedding is named with its rank, by the rows of the pack's
// tokens. A difference of full rank is not named.
func TestMergedLoRAOfTheEmbedding_every(t *testing.T) {
	const embedding, head = "model.embed_tokens.weight", "lm_head.weight"
	c, err := checkpoint.Open(filepath.Join("..", "fixtures", "v3", "checkpoint"))
	require.NoError(t, err)
	defer c.Close()
	in := &model.Input{Batch: 1, Seq: 64}
	rng := rand.New(rand.NewPCG(5, 6))
	for range in.Seq {
		in.InputIDs = append(in.InputIDs, rng.IntN(c.Config.VocabSize))
	}
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
		if d == tensor.F32 && !configtest.Every(t) {
			continue
		}
		reference := recorded(t, c.Config, c, in, d)
		merged := recorded(t, c.Config, lora(t, c, 2, .1, 1, 1, embedding, head), in, d)
		single := recorded(t, c.Config, lora(t, c, 1, .1, 1, 1, embedding), in, d)
		for name, test := range map[string]struct {
			golden *pack.Pack
			ours   weights.Source
			rank   int // 0: none is named
		}{
			"merged":          {reference, lora(t, c, 3, .1, 1, 1, embedding), 3},
			"small":           {reference, lora(t, c, 2, .02, 1, 1, embedding), 2},
			"with the head":   {reference, lora(t, c, 2, .1, 1, 1, embedding, head), 2},
			"missing":         {merged, c, 2},
			"doubled":         {merged, lora(t, c, 2, .1, 2, 1, embedding, head), 2},
			"mispaired":       {single, lora(t, c, 1, .1, 1, 2, embedding), 2},
			"of a large rank": {reference, lora(t, c, 40, .1, 1, 1, embedding), 0},
		} {
			r, err := Run(context.Background(), c.Config, test.ours, test.golden, Options{})
			require.NoError(t, err)
			require.Equal(t, report.Fail, r.Verdict, name)
			require.Equal(t, "model.embed_tokens.output", *r.FirstDivergence, name)
			if test.rank == 0 {
				require.Empty(t, slices.Concat(r.Causes, r.Hints), name)
				continue
			}
			require.Len(t, r.Causes, 1, "%s %v", name, d)
			require.Equal(t, "low-rank", r.Cause.ID, name)
			require.Contains(t, r.Cause.Text, fmt.Sprintf("differ by a matrix of rank %d, such as a LoRA or a few columns, in the rows of ",
				test.rank), name)
		}
	}
}
