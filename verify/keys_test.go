package verify_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

const chosenKeys = "model.layers.1.self_attn.indexer.topk_idx"

// TestKeysThatAreNotTheGoldens: of 43 tokens each query chooses 8 keys. The choice of another key fails unless
// its score is the same.
func TestKeysThatAreNotTheGoldens(t *testing.T) {
	t.Parallel()
	c, right := open(t, "v32-yarn/golden-f32")
	scores, err := right.Float32s("model.layers.1.self_attn.indexer.scores")
	require.NoError(t, err)
	keys, err := right.Ints(chosenKeys)
	require.NoError(t, err)
	const seq, k, early, late = 43, 8, 5, 40
	row := func(query int) []int { return keys[query*k : (query+1)*k] }
	other := func(query int, wanted func(key int) bool) int { // a key that query does not choose
		for key := range query + 1 {
			if !slices.Contains(row(query), key) && wanted(key) {
				return key
			}
		}
		return -1
	}
	tied, twin, place := -1, -1, 0 // a query with keys of one score, of which it chose one
	for query := k; query < seq && twin < 0; query++ {
		for i, key := range row(query) {
			if twin = other(query, func(o int) bool { return scores[query*seq+o] == scores[query*seq+key] }); twin >= 0 {
				tied, place = query, i
				break
			}
		}
	}
	require.Positive(t, tied)
	worse := other(late, func(key int) bool { return scores[late*seq+key] < scores[late*seq+row(late)[0]] })
	for name, test := range map[string]struct {
		query, place, key int
		reason            string // of the failed check; "" if it passes
	}{
		"equal score":    {tied, place, twin, ""},
		"less score":     {late, 0, worse, "1 choice of another key, where rounding does not explain it"},
		"twice":          {late, 1, row(late)[0], "golden key"},
		"none":           {late, k - 1, -1, "the golden has 7 keys of query 40, which sees 41: not 8"},
		"one too many":   {early, early + 1, 20, "the golden has 7 keys of query 5, which sees 6: not 6"},
		"hidden":         {early, 0, 30, "golden key 30 of query 5 is hidden by the mask"},
		"no token":       {late, 0, seq, "golden key 43 of query 40 is not one of 43"},
		"below the mask": {late, 0, -2, "golden key -2 of query 40 is not one of 43"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := slices.Clone(keys)
			changed[test.query*k+test.place] = test.key
			p, err := pack.Open(rewritten(t, "v32-yarn/golden-f32", func(dir string, m map[string]any) {
				rewrite(t, dir, m, chosenKeys, changed)
			}))
			require.NoError(t, err)
			for _, mode := range []report.Mode{report.Local, report.Chained} {
				r := run(t, c.Config, c, p, verify.Options{Mode: mode, Stages: []string{"self_attn.indexer.*"}})
				check := r.Checks[slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == chosenKeys })]
				if test.reason == "" {
					require.Equal(t, report.Pass, check.Verdict, check.Reason)
					require.Positive(t, r.Routing.Keys.ExactTies)
					require.Zero(t, r.Routing.Keys.Mismatches)
					continue
				}
				require.Equal(t, report.Fail, check.Verdict)
				require.Contains(t, check.Reason, test.reason)
			}
		})
	}
}

// TestScoresWithoutTheMask_every: the reference scored, and chose, keys that the mask hides from one query, the first
// or a later one; or the pack's choice is one that the mask allows.
func TestScoresWithoutTheMask_every(t *testing.T) {
	t.Parallel()
	for golden, layer := range map[string]string{"v32-yarn/golden-f32": "model.layers.1.", "v32/golden-bf16": "model.layers.1.",
		"glm5/golden-f32": "model.layers.0."} {
		c, right := open(t, golden)
		stage, chosen := layer+"self_attn.indexer.scores", layer+"self_attn.indexer.topk_idx"
		scores, keys := must(right.Float32s(stage)), must(right.Ints(chosen))
		seq := right.Manifest.Tensors[stage].Shape[2]
		k := right.Manifest.Tensors[chosen].Shape[2]
		for _, query := range []int{0, k + 1} {
			for i := range seq { // better than all keys that the query sees
				if at := query*seq + i; scores[at] < -1e38 {
					scores[at] = float32(100 + i)
				}
			}
			chosenFreely := slices.Clone(keys)
			for i := range k {
				chosenFreely[query*k+i] = seq - k + i
			}
			for _, wanted := range [][]int{keys, chosenFreely} {
				p, err := pack.Open(rewritten(t, golden, func(dir string, m map[string]any) {
					rewrite(t, dir, m, stage, scores)
					rewrite(t, dir, m, chosen, wanted)
				}))
				require.NoError(t, err)
				for _, mode := range []report.Mode{report.Local, report.Chained} {
					if (mode == report.Chained) != (query > 0) && !configtest.Every(t) {
						continue
					}
					r := run(t, c.Config, c, p, verify.Options{Mode: mode})
					if mode == report.Local || p.Manifest.ComputeDType == "float32" {
						require.Equal(t, stage, *r.FirstDivergence, "%s %s", golden, mode)
					}
				}
			}
		}
	}
}

// TestTiesOfKeysAreCounted as the recorder of the packs counted them.
func TestTiesOfKeysAreCounted(t *testing.T) {
	t.Parallel()
	for golden, want := range map[string][3]int{"v32/golden-f32": {69, 10, 10}, "v32-yarn/golden-f32": {105, 5, 5},
		"glm5/golden-f32": {54, 3, 3}} {
		c, p := open(t, golden)
		for _, mode := range []report.Mode{report.Local, report.Chained} {
			r := run(t, c.Config, c, p, verify.Options{Mode: mode})
			require.Equal(t, report.Pass, r.Verdict, "%s, %v", golden, r.Reasons)
			keys := r.Routing.Keys
			require.Equal(t, want, [3]int{keys.Queries, keys.TiedCuts, keys.ZeroCuts}, golden)
			require.Zero(t, keys.Mismatches+keys.NearTies)
		}
	}
}

// TestLayersThatShareKeys: layer 1 of GLM-5's pack takes the keys of layer 0's indexer, from the pack where
// layer 0 is not run.
func TestLayersThatShareKeys(t *testing.T) {
	t.Parallel()
	const keys = "model.layers.0.self_attn.indexer.topk_idx"
	c, p := open(t, "glm5/golden-f32")
	for _, mode := range []report.Mode{report.Local, report.Chained} {
		for _, layers := range []text.Spans{{{1, 1}}, {{3, 4}}} {
			r := run(t, c.Config, c, p, verify.Options{Mode: mode, Layers: layers})
			require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
		}
	}
	without, err := pack.Open(rewritten(t, "glm5/golden-f32", func(dir string, m map[string]any) {
		delete(m["tensors"].(map[string]any), keys)
		prune(t, dir, m)
	}))
	require.NoError(t, err)
	_, err = verify.Run(context.Background(), c.Config, c, without, verify.Options{Layers: text.Spans{{1, 1}}})
	require.ErrorContains(t, err, keys+", which later layers share: ")
}

// TestChoiceOfAllKeys: index_topk is not exercised, and the report says so.
func TestChoiceOfAllKeys(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v32/golden-f32")
	all, err := c.Config.Override(map[string]jsontext.Value{"index_topk": jsontext.Value("29")})
	require.NoError(t, err)
	short, err := pack.Open(rewritten(t, "v32/golden-f32", func(dir string, m map[string]any) {
		for name := range m["tensors"].(map[string]any) {
			if strings.HasSuffix(name, ".topk_idx") && strings.Contains(name, ".indexer.") {
				rewrite(t, dir, m, name, visibleKeys(t, p), 2, 29, 29)
			}
		}
	}))
	require.NoError(t, err)
	r := run(t, all, c, short, verify.Options{Stages: []string{"self_attn.indexer.*"}})
	require.Equal(t, report.Pass, r.Verdict, "%v", r.FirstDivergence)
	require.Contains(t, printed(t, r), "config     index_topk not exercised: the pack has 29 positions: every query attends to all "+
		"keys that it sees\n")
}

// visibleKeys returns all keys that each query of a pack sees.
func visibleKeys(t *testing.T, p *pack.Pack) (keys []int) {
	t.Helper()
	in, err := p.Input()
	require.NoError(t, err)
	for i := range in.InputIDs {
		seen := []int{}
		for key := range i%in.Seq + 1 {
			if !in.IsPadding(i/in.Seq*in.Seq + key) {
				seen = append(seen, key)
			}
		}
		keys = append(append(keys, seen...), slices.Repeat([]int{-1}, in.Seq-len(seen))...)
	}
	return keys
}

// TestPacksOfIndexersThatAreRefused.
func TestPacksOfIndexersThatAreRefused(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v32/golden-f32")
	for want, edit := range map[string]func(m map[string]any){
		"packs of training are not supported":       func(m map[string]any) { m["mode"] = "train" },
		"F16 packs are not supported":               func(m map[string]any) { m["compute_dtype"] = "float16" },
		"packs of sdpa attention are not supported": func(m map[string]any) { m["reference"].(map[string]any)["attn_implementation"] = "sdpa" },
	} {
		p, err := pack.Open(rewritten(t, "v32/golden-f32", func(_ string, m map[string]any) { edit(m) }))
		require.NoError(t, err)
		_, err = verify.Run(context.Background(), c.Config, c, p, verify.Options{})
		require.ErrorContains(t, err, "model_type deepseek_v32: "+want)
	}
}
