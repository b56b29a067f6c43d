package verify_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// checkOf is the check of a tensor.
func checkOf(r *report.Report, name string) report.Check {
	return r.Checks[slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == name })]
}

// retold opens a pack in which one tensor of a file has other values.
func retold[T float32 | int](t *testing.T, golden, name string, values []T) *pack.Pack {
	t.Helper()
	return must(pack.Open(rewritten(t, golden, func(dir string, m map[string]any) { rewrite(t, dir, m, name, values) })))
}

// TestStreamsEndToEnd: V4's packs in float32 pass chained, too, of either set of names, and every stage of BF16 is the
// same for both.
func TestStreamsEndToEnd(t *testing.T) {
	t.Parallel()
	for _, golden := range []string{"v4/golden-f32", "v4-128/golden-f32", "v4-fp4/golden-f32"} {
		c, p := open(t, golden)
		r := run(t, c.Config, c, p, verify.Options{Mode: report.Chained})
		require.Equal(t, report.Pass, r.Verdict, "%s: %v %v", golden, r.FirstDivergence, r.Reasons)
	}
	resaved, err := checkpoint.Open(fixture("v4/checkpoint-resaved"))
	require.NoError(t, err)
	defer resaved.Close()
	c, p := open(t, "v4/golden-bf16")
	published := run(t, c.Config, c, p, verify.Options{})
	require.Equal(t, published.Checks, run(t, resaved.Config, resaved, p, verify.Options{}).Checks)
}

// TestEntriesAreCounted: queries that see more entries than they choose, and choices among equal scores, as the
// recorder of the packs counted them; and the rows of the tables of experts.
func TestEntriesAreCounted(t *testing.T) {
	t.Parallel()
	for golden, want := range map[string][4]int{"v4/golden-f32": {32, 0, 0, 34}, "v4/golden-bf16": {32, 1, 1, 34},
		"v4-128/golden-f32": {192, 13, 13, 102}, "v4-fp4/golden-f32": {11, 0, 0, 19}} {
		c, p := open(t, golden)
		r := run(t, c.Config, c, p, verify.Options{})
		keys := r.Routing.Keys
		require.Equal(t, want, [4]int{keys.Queries, keys.TiedCuts, keys.ZeroCuts, r.Routing.Layers[0].TableRows}, golden)
		require.Zero(t, keys.Mismatches+keys.NearTies)
	}
	c, p := open(t, "v4/golden-f32")
	text := printed(t, run(t, c.Config, c, p, verify.Options{}))
	require.Contains(t, text, "34 of 90 rows of tid2eid in layers 0, 1\n")
	require.NotContains(t, text, "swiglu_limit")
	require.Contains(t, text, "rules      these are transformers' rules: the official inference code computes router, ")
}

// TestEntriesThatAreNotTheGoldens: of 64 entries each query chooses 16 of those that are complete at its token.
func TestEntriesThatAreNotTheGoldens(t *testing.T) {
	t.Parallel()
	const name, queries, k, late = "model.layers.1.self_attn.compressor.indexer.topk_idx", 259, 16, 250
	c, right := open(t, "v4-128/golden-f32")
	keys, err := right.Ints(name)
	require.NoError(t, err)
	scores, err := right.Float32s("model.layers.1.self_attn.compressor.indexer.scores")
	require.NoError(t, err)
	row, entries := keys[late*k:(late+1)*k], scores[late*64:(late+1)*64]
	other := slices.IndexFunc(entries[:(late+1)/4], func(s float32) bool { return s < entries[row[0]]/2 })
	require.NotContains(t, row, other)
	for reason, test := range map[string][3]int{
		"1 choice of another key, where rounding does not explain it": {late, 0, other},
		"golden key 64 of query 250 is not one of 64":                 {late, 0, 64},
		"golden key 63 of query 250 is hidden by the mask":            {late, 0, 63},
		"the golden has 1 keys of query 11, which sees 3: not 3":      {11, 1, -1},
	} {
		moved := slices.Clone(keys)
		moved[test[0]*k+test[1]] = test[2]
		for _, mode := range []report.Mode{report.Local, report.Chained} {
			r := run(t, c.Config, c, retold(t, "v4-128/golden-f32", name, moved), verify.Options{Mode: mode})
			require.Equal(t, report.Fail, r.Verdict)
			require.Equal(t, name, *r.FirstDivergence)
			require.Contains(t, checkOf(r, name).Reason, reason)
		}
	}
}

// TestExpertsOfTheTable: a golden that has other experts of a token than tid2eid lists fails at the choice, in
// whatever mode, though their scores may be equal.
func TestExpertsOfTheTable(t *testing.T) {
	t.Parallel()
	const name = "model.layers.0.mlp.gate.topk_idx"
	c, right := open(t, "v4/golden-f32")
	idx, err := right.Ints(name)
	require.NoError(t, err)
	experts := slices.Clone(idx)
	experts[7*3+1] = idx[7*3] // twice, as a table may have it
	p := retold(t, "v4/golden-f32", name, experts)
	for _, mode := range []report.Mode{report.Local, report.Chained} {
		r := run(t, c.Config, c, p, verify.Options{Mode: mode})
		require.Equal(t, name, *r.FirstDivergence)
		check := checkOf(r, name)
		require.Equal(t, "1 choice of another expert than model.layers.0.mlp.gate.tid2eid lists for the token", check.Reason)
		require.Equal(t, []int{7, 1}, check.Index)
	}
	experts[7*3+1] = 7
	r := run(t, c.Config, c, retold(t, "v4/golden-f32", name, experts), verify.Options{})
	require.Regexp(t, "^golden expert 7 of token 7 is not one of 7; the largest is 7: ", checkOf(r, name).Reason)
}

// TestPaddingThatEntriesReadIsCompared: tokens 0 to 4 of the second sequence are padding, of which entries are made.
func TestPaddingThatEntriesReadIsCompared(t *testing.T) {
	t.Parallel()
	c, right := open(t, "v4/golden-f32")
	in, err := right.Input()
	require.NoError(t, err)
	padding := slices.Index(in.AttentionMask, 0)
	require.Positive(t, padding)
	require.Zero(t, run(t, c.Config, c, right, verify.Options{}).Coverage.Padding)
	for _, kind := range []string{"self_attn.compressor.kv_proj.output", "output", "self_attn.context"} {
		name := "model.layers.1." + kind
		values, err := right.Float32s(name)
		require.NoError(t, err)
		width := len(values) / len(in.InputIDs)
		if kind == "self_attn.context" { // its sink takes all that a query may give which sees no key
			require.Equal(t, make([]float32, width), values[padding*width:(padding+1)*width])
		}
		values[padding*width] += 1e-3
		r := run(t, c.Config, c, retold(t, "v4/golden-f32", name, values), verify.Options{})
		require.Equal(t, name, *r.FirstDivergence)
		require.Equal(t, 1, checkOf(r, name).Beyond)
	}
}

// TestWindowedKeysThatAreNotExercised: short sequences fit into a window, make no entries, and leave no choice.
func TestWindowedKeysThatAreNotExercised(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v4/golden-f32")
	wide := must(c.Config.Override(map[string]jsontext.Value{"sliding_window": jsontext.Value("23"),
		"index_topk": jsontext.Value("5")}))
	var keys []string
	for _, u := range run(t, wide, c, p, verify.Options{Undiagnosed: true, Stages: []string{"model.norm.output"}}).Config.Unexercised {
		keys = append(keys, u.Key+": "+u.Why)
	}
	text := strings.Join(keys, "\n")
	require.Contains(t, text, "sliding_window: the pack has 23 positions: every query's window holds all tokens before it")
	require.Contains(t, text, "index_topk: the pack has 5 entries: every query attends to all that it sees")
	require.Empty(t, run(t, c.Config, c, p, verify.Options{}).Config.Unexercised)
}

// TestAnotherNumberOfEntries is found at the choice, and named: scores that a mask hides are no overflow.
func TestAnotherNumberOfEntries(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v4/golden-f32")
	for _, n := range []string{"2", "4"} {
		wrong := must(c.Config.Override(map[string]jsontext.Value{"index_topk": jsontext.Value(n)}))
		r := run(t, wrong, c, p, verify.Options{})
		require.Equal(t, "model.layers.1.self_attn.compressor.indexer.topk_idx", *r.FirstDivergence)
		require.Len(t, r.Causes, 1)
		require.Equal(t, "the reference ran with index_topk 3, here it is "+n, r.Cause.Text)
	}
}

// TestTooManyStreams are refused before anything is computed.
func TestTooManyStreams(t *testing.T) {
	c, p := open(t, "v4/golden-f32")
	many := must(c.Config.Override(map[string]jsontext.Value{"hc_mult": jsontext.Value("9")}))
	_, err := verify.Run(t.Context(), many, c, p, verify.Options{})
	require.ErrorContains(t, err, "hc_mult 9: the covariance of the weights of more than 8 streams is not computed")
}

// TestLimitsOfNeuronsThatAreNotExercised: all neurons of one layer stay below the limit; in either mode the report
// names the layer.
func TestLimitsOfNeuronsThatAreNotExercised(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v4-128/golden-f32")
	for _, mode := range []report.Mode{report.Local, report.Chained} {
		r := run(t, c.Config, c, p, verify.Options{Mode: mode})
		require.Equal(t, report.Pass, r.Verdict)
		require.Contains(t, printed(t, r), "no neuron of layers 0, 1 is beyond swiglu_limit: it was not exercised there\n")
	}
}

// TestStreamsWithoutTheirWeights: where a pack lacks the weights of streams, all elements of a row share their errors.
// The stages behind them pass nevertheless, far from the limit of a row, and say something.
func TestStreamsWithoutTheirWeights(t *testing.T) {
	t.Parallel()
	for _, golden := range []string{"v4/golden-f32", "v4/golden-bf16", "v4-128/golden-f32", "v4-fp4/golden-f32"} {
		c, _ := open(t, golden)
		p := must(pack.Open(rewritten(t, golden, func(dir string, m map[string]any) {
			absent := []string{}
			for name := range m["tensors"].(map[string]any) {
				if kind := pack.Parse(name).Within; strings.Contains(kind, "hc") && !strings.HasSuffix(kind, "put") {
					delete(m["tensors"].(map[string]any), name)
					absent = append(absent, kind)
				}
			}
			m["partial"], m["absent"] = "weights of streams left out", map[string]any{"stages": absent}
			prune(t, dir, m)
		})))
		r := run(t, c.Config, c, p, verify.Options{})
		require.Equal(t, report.Pass, r.Verdict, "%s: %v %v", golden, r.FirstDivergence, r.Reasons)
		for _, c := range r.Checks {
			if c.RowZ != nil {
				require.Less(t, *c.RowZ, 2.0, "%s %s", golden, c.Tensor)
			}
		}
	}
}

// TestSequencesTooShortForEntries: an entry of layer 1 is made of two windows of 4 tokens, one of layer 2 of 8. Merged
// parts say it once, too.
func TestSequencesTooShortForEntries(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v4/golden-short-f32")
	r := run(t, c.Config, c, p, verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Contains(t, r.Reasons, "sequences of 7 tokens: compressors that need at least 8 do not exercise all their weights")
	var parts []*report.Report
	for i := range 3 {
		parts = append(parts, run(t, c.Config, c, p, verify.Options{Part: &report.Part{Index: i + 1, Of: 3}}))
	}
	merged, _, err := verify.Merge(parts)
	require.NoError(t, err)
	require.Equal(t, r.Reasons, merged.Reasons)
	tables := 0
	for _, check := range r.Checks {
		if require.Equal(t, report.Pass, check.Verdict, check.Tensor); check.Stage().IsTable() {
			tables++
		}
	}
	require.Equal(t, 4, tables)
}
