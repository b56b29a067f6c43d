package count

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/table"
)

// TestPaperTables: the numbers that the paper prints, each within the rounding of
// its last digit. DeepSeekMoE 145B is not among them: its 585.6 T (585.5 here) follow
// from a width that the paper does not give.
func TestPaperTables(t *testing.T) {
	const tera, billion = 1e12, 1e9
	// Models of the paper by their dimensions; ffns is the standard FFNs active in each layer.
	flops := func(layers, d, vocab, seq int, ffns float64) float64 {
		return PaperModel{layers, d, vocab, seq, float64(layers) * ffns * standardFFN(d)}.FLOPs() / tera
	}
	small := func(ffns float64) float64 { return flops(9, 1280, 8192, 2048, ffns) }
	large := func(ffns float64) float64 { return flops(62, 4096, 102400, 4096, ffns) }
	experts := func(ffns float64) float64 { return 9 * ffns * standardFFN(1280) / billion }
	half142B := PaperModel{62, 4096, 102400, 4096, 62 * (2 + 6) * 3 * 4096 * 1408}

	for name, test := range map[string]struct{ got, printed, rounding float64 }{
		"LLaMA2 7B":                               {flops(32, 4096, 32000, 4096, 1), 187.9, 0.05},
		"DeepSeek 7B":                             {flops(30, 4096, 102400, 4096, 1), 183.5, 0.05},
		"DeepSeekMoE 16B":                         {flops(28, 2048, 102400, 4096, 2), 74.4, 0.05},
		"2B dense":                                {small(1), 2.9, 0.05},
		"2B GShard and DeepSeekMoE":               {small(2), 4.3, 0.05},
		"2B GShard x1.5":                          {small(3), 5.8, 0.05},
		"2B dense x16":                            {small(16), 24.6, 0.05},
		"GShard 137B":                             {large(2), 572.7, 0.05},
		"DeepSeekMoE 142B, half activated":        {half142B.FLOPs() / tera, 374.6, 0.05},
		"2B expert parameters":                    {experts(16), 1.89, 0.005},
		"2B activated expert parameters":          {experts(2), 0.24, 0.005},
		"GShard x1.5 expert parameters":           {experts(16 * 1.5), 2.83, 0.005},
		"GShard x1.5 activated expert parameters": {experts(2 * 1.5), 0.35, 0.005},
		"GShard x1.2 expert parameters":           {experts(16 * 1.2), 2.3, 0.05},
		"GShard x1.2 activated expert parameters": {experts(2 * 1.2), 0.28, 0.005},
	} {
		assert.InDelta(t, test.printed, test.got, test.rounding, name)
	}
}

// TestPaperModelOf16B: the config's widths, 1408 and 10944, are a quarter of a
// standard FFN and two; so the paper's 74.4 T follow from config.json.
func TestPaperModelOf16B(t *testing.T) {
	c := configtest.Fixture(t, "states/deepseek-moe-16b")
	assert.Equal(t, 0.25, StandardFFNs(c.MoE.MoEIntermediateSize, c.HiddenSize))
	assert.Equal(t, 2.0, StandardFFNs(c.IntermediateSize, c.HiddenSize))
	p := PaperModelOf(c, 4096)
	assert.Equal(t, PaperModel{28, 2048, 102400, 4096, 28 * 2 * 8 * 2048 * 2048}, p)
	assert.Equal(t, 74_423_193_305_088.0, p.FLOPs())
}

func TestStandardFFNs(t *testing.T) {
	for _, test := range []struct {
		width, hidden int
		want          float64
	}{
		{8, 3, 1}, {16, 3, 2}, {4, 3, 0.5}, {1, 3, 0.125}, {11008, 4096, 1}, {2048, 7168, 1.0 / 9}, {1, 1 << 20, 3.0 / (8 << 20)},
	} {
		assert.InDelta(t, test.want, StandardFFNs(test.width, test.hidden), 1e-6*test.want, "%d of %d", test.width, test.hidden)
	}
}

// TestPaperConstancy: the paper's claim, and its ablations. Splitting
// and isolating leave the experts' parameters, all and activated, as they were.
func TestPaperConstancy(t *testing.T) {
	type layer struct {
		l            PaperLayer
		experts      float64 // in FFNs
		activated    float64
		combinations string
		log2         float64
	}
	segment := func(m, shared int) Segmentation {
		s, err := Segment(16, 2, m, shared, 0, 0)
		require.NoError(t, err)
		return s
	}
	moe16B, err := SegmentationOf(configtest.Fixture(t, "states/deepseek-moe-16b"), 4)
	require.NoError(t, err)
	moe145B := Segmentation{Experts: 4 + 128, PerToken: 4 + 12, M: 8, Shared: 4}

	for name, want := range map[string]layer{
		"top-2 (GShard)":           {segment(4, 1).Conventional(), 16, 2, "120", 6.9},
		"fine-grained, m = 4":      {segment(4, 1).FineGrained(), 16, 2, "4426165368", 32.0},
		"shared, 1+63 (2B)":        {segment(4, 1).SharedIsolated(), 16, 2, "553270671", 29.0},
		"ablation 1+15":            {segment(1, 1).SharedIsolated(), 16, 2, "15", 3.9},
		"ablation 1+31":            {segment(2, 1).SharedIsolated(), 16, 2, "4495", 12.1},
		"ablation 2+62":            {segment(4, 2).SharedIsolated(), 16, 2, "61474519", 25.9},
		"ablation 4+60":            {segment(4, 4).SharedIsolated(), 16, 2, "487635", 18.9},
		"16B, 2+64":                {moe16B.SharedIsolated(), 16.5, 2, "74974368", 26.2},
		"145B, 4+128":              {moe145B.SharedIsolated(), 16.5, 2, "23726045489546400", 54.4},
		"nothing split, no shared": {segment(1, 0).SharedIsolated(), 16, 2, "120", 6.9},
	} {
		t.Run(name, func(t *testing.T) {
			experts, activated := want.l.FFNs()
			assert.Equal(t, want.experts, experts)
			assert.Equal(t, want.activated, activated)
			n := want.l.Combinations()
			assert.Equal(t, want.combinations, n.String())
			f, _ := n.Float64()
			assert.InDelta(t, want.log2, math.Log2(f), 0.05)
		})
	}
}

func TestSegmentation(t *testing.T) {
	s, err := Segment(16, 2, 4, 1, 2048, 5632)
	require.NoError(t, err)
	assert.Equal(t, PaperLayer{0, 16, 2, 1, 2048, 5632}, s.Conventional())
	assert.Equal(t, PaperLayer{0, 64, 8, 4, 2048, 1408}, s.FineGrained())
	assert.Equal(t, PaperLayer{1, 63, 7, 4, 2048, 1408}, s.SharedIsolated())
	for _, l := range []PaperLayer{s.Conventional(), s.FineGrained(), s.SharedIsolated()} {
		all, activated := l.ExpertParameters()
		assert.EqualValues(t, 16*3*2048*5632, all)
		assert.EqualValues(t, 2*3*2048*5632, activated)
		assert.EqualValues(t, l.Routed*2048, l.RouterParameters())
	}
	assert.Equal(t, 7.0/63, s.SharedIsolated().Nonzero())
}

// TestSegmentationOf16B: the layer of the config, as Modules counts it; N is not whole.
func TestSegmentationOf16B(t *testing.T) {
	c := configtest.Fixture(t, "states/deepseek-moe-16b")
	s, err := SegmentationOf(c, 4)
	require.NoError(t, err)
	assert.Equal(t, PaperLayer{0, 16, 2, 1, 2048, 5632}, s.Conventional())
	assert.Equal(t, PaperLayer{2, 64, 6, 4, 2048, 1408}, s.SharedIsolated())
	counts := Modules(c)
	experts := counts.Sum(table.Embedding, table.Attention, table.DenseMLP, table.Norms, table.Head, table.Router)
	all, activated := s.SharedIsolated().ExpertParameters()
	assert.Equal(t, experts.Parameters, 27*all)
	assert.Equal(t, experts.Activated, 27*activated)
	assert.Equal(t, 0.09375, s.SharedIsolated().Nonzero())

	_, err = SegmentationOf(c, 9)
	assert.EqualError(t, err, "m = 9 is not in 1..8, the active experts mK")
	_, err = SegmentationOf(c, -1)
	assert.Error(t, err)
	byDefault, err := SegmentationOf(c, 0)
	require.NoError(t, err)
	assert.Equal(t, s, byDefault)
	top1, err := SegmentationOf(configtest.Fixture(t, "v1-top1-noshared/checkpoint"), 0)
	require.NoError(t, err)
	assert.Equal(t, 1, top1.M)
	assert.Equal(t, top1.Conventional(), top1.SharedIsolated())
	_, err = SegmentationOf(configtest.Fixture(t, "v1-dense/checkpoint"), 4)
	assert.ErrorContains(t, err, "dense")
}

// TestSegmentNamesEveryProblem at once, one a line.
func TestSegmentNamesEveryProblem(t *testing.T) {
	for _, test := range []struct {
		n, k, m, shared, d, ff int
		want                   string
	}{
		{0, 0, 0, 0, 0, 0, "N = 0 is not in 1..65536\nK = 0 is not in 1..65536\nm = 0 is not in 1..65536"},
		{2, 3, 4, 12, 8, 0, "K = 3 is more than N = 2\nK_s = 12 is not in 0..11, below mK\nhidden size d and intermediate size d_ff are needed together"},
		{2, 1, 4, -1, 8, 10, "K_s = -1 is not in 0..3, below mK\n" +
			"intermediate size d_ff = 10 is not a multiple of m = 4: parameters would not stay equal; 12 is one"},
		{1, 1, 1, 0, -1, 1 << 23, "hidden size d = -1 is not in 0..4194304\nintermediate size d_ff = 8388608 is not in 0..4194304"},
		{65536, 1, 2, 0, 0, 0, "mN = 131072 is more than 65536"},
		{math.MaxInt, 1, math.MaxInt, 0, 0, 0, "N = 9223372036854775807 is not in 1..65536\nm = 9223372036854775807 is not in 1..65536"},
	} {
		_, err := Segment(test.n, test.k, test.m, test.shared, test.d, test.ff)
		assert.EqualError(t, err, test.want)
	}
	_, err := Segment(1, 1, 1, 0, 0, 0)
	assert.NoError(t, err)
	_, err = Segment(65536, 65536, 1, 65535, 1<<22, 1<<22)
	assert.NoError(t, err)
}
