package report

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/experts"
	"dsmoe/inspect/inspecttest"
)

// planter plants faults into a model.
type planter struct {
	*inspecttest.Stored
	*rand.Rand
}

// numbers changes all numbers of some tensors.
func (p *planter) numbers(f func(v float32) float32, names ...string) {
	for _, name := range names {
		p.Change(name, func(values []float32) { inspecttest.Row(0, len(values), f)(values) })
	}
}

// expert returns the names of an expert's matrices.
func expert(layer, e int) (names []string) {
	for _, m := range []string{"gate", "up", "down"} {
		names = append(names, inspecttest.ExpertName(layer, e, m))
	}
	return names
}

// initial returns random numbers of standard deviation 0.02.
func (p *planter) initial(float32) float32 { return float32(0.02 * p.NormFloat64()) }

// mix makes an expert a times itself and b times another one.
func (p *planter) mix(layer, to, from int, a, b float32) {
	for i, name := range expert(layer, from) {
		other := p.Numbers(name)
		p.Change(expert(layer, to)[i], func(values []float32) {
			for k := range values {
				values[k] = a*values[k] + b*other[k]
			}
		})
	}
}

// share puts a routed expert among the shared ones of its layer, with noise of a share of each number.
func (p *planter) share(layer, e int, noise float64) {
	for i, name := range expert(layer, e) {
		own := p.Numbers(name)
		shared := strings.Replace(name, fmt.Sprintf("experts.%d", e), "shared_experts", 1)
		p.Change(shared, func(values []float32) {
			for k, v := range own {
				if i == 2 { // down_proj [192, 64]
					k += k / 32 * 32
				}
				values[k] = v * float32(1+noise*p.NormFloat64())
			}
		})
	}
}

// rounded makes the numbers of tensors multiples of the largest of their group of 32, over n.
func (p *planter) rounded(n float64, names ...string) {
	for _, name := range names {
		p.Change(name, func(values []float32) {
			for at := 0; at+32 <= len(values); at += 32 {
				most := 0.0
				for _, v := range values[at : at+32] {
					most = max(most, math.Abs(float64(v)))
				}
				for i, v := range values[at : at+32] {
					values[at+i] = float32(math.Round(float64(v)/most*n) * most / n)
				}
			}
		})
	}
}

// attention returns the names of the projections of a layer.
func attention(layer int) (names []string) {
	for _, m := range []string{"q", "k", "v", "o"} {
		names = append(names, fmt.Sprintf("model.layers.%d.self_attn.%s_proj.weight", layer, m))
	}
	return names
}

// TestPlantedFaults_every: what is planted into a trained model is found, and nothing else is. Without -every one fault of
// every third kind of finding is planted.
func TestPlantedFaults_every(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{}
	faults := map[string]struct {
		plant func(p *planter)
		want  string // how the line begins
	}{
		"an expert at its initial values": {func(p *planter) { p.numbers(p.initial, expert(2, 5)...) },
			"notice: untrained: model.layers.2.mlp.experts.5"},
		"a layer at its initial values": {func(p *planter) {
			for e := range 24 {
				p.numbers(p.initial, expert(2, e)...)
			}
		}, "notice: untrained-layer: model.layers.2.mlp.experts.0"},
		"an expert × 0.001": {func(p *planter) { p.numbers(inspecttest.Times(0.001), expert(2, 5)...) },
			"notice: norm: model.layers.2.mlp.experts.5"},
		"an expert × 3": {func(p *planter) { p.numbers(inspecttest.Times(3), expert(2, 5)...) },
			"notice: norm: model.layers.2.mlp.experts.5"},
		"the mean of two experts": {func(p *planter) {
			p.mix(2, 5, 5, 0, 0)
			p.mix(2, 5, 7, 0, 0.7)
			p.mix(2, 5, 9, 1, 0.7)
		}, "notice: similar: "},
		"with another's residue": {func(p *planter) { p.mix(2, 5, 9, 0.7, 1) }, "notice: similar: "},
		"an expert of 4 bits":    {func(p *planter) { p.rounded(7, expert(2, 5)...) }, "notice: low-bits: model.layers.2.mlp.experts.5"},
		"an expert of 8 bits":    {func(p *planter) { p.rounded(127, expert(2, 5)...) }, "notice: low-bits: model.layers.2.mlp.experts.5"},
		"a layer of 8 bits": {func(p *planter) {
			for e := range 24 {
				p.rounded(127, expert(2, e)...)
			}
		}, "notice: low-bits: model.layers.2.mlp.experts.0"},
		"a routed expert among the shared": {func(p *planter) { p.share(2, 5, 0) },
			"error: duplicate: model.layers.2.mlp.experts.5"},
		"a routed expert close to the shared": {func(p *planter) { p.share(2, 5, 0.1) },
			"notice: similar: model.layers.2.mlp.experts.5: computes much of what"},
		"a head that is the embedding": {func(p *planter) { p.Data["lm_head.weight"] = p.Data["model.embed_tokens.weight"] },
			"error: head-is-embedding: lm_head.weight"},
		"zero rows of the embedding": {func(p *planter) { clear(p.Data["model.embed_tokens.weight"][2*192*40 : 2*192*60]) },
			"notice: zero-rows: model.embed_tokens.weight: 20 rows in blocks are zero, rows 40-59"},
		"a row of the head × 50": {func(p *planter) {
			p.Change("lm_head.weight", inspecttest.Row(192*65, 192, inspecttest.Times(50)))
		}, "notice: row-norm: lm_head.weight: row 65 "},
		"a norm of ones": {func(p *planter) {
			p.numbers(func(float32) float32 { return 1 }, "model.layers.2.input_layernorm.weight")
		}, "notice: untrained: model.layers.2.input_layernorm.weight"},
		"a norm of zeros": {func(p *planter) { p.Zero("model.layers.2.input_layernorm.weight") },
			"error: value: model.layers.2.input_layernorm.weight"},
		"a matrix that is another": {func(p *planter) { p.Data[attention(1)[0]] = p.Data[attention(2)[1]] },
			"error: duplicate-matrix: model.layers.1.self_attn.q_proj.weight"},
		"attention at its initial values": {func(p *planter) { p.numbers(p.initial, attention(2)...) },
			"notice: untrained: model.layers.2.self_attn."},
		"a model of 4 bits": {func(p *planter) {
			for _, w := range p.Weights().List {
				if len(w.Shape) == 2 {
					p.rounded(7, w.Name)
				}
			}
		}, "notice: low-bits: "},
		"a layer that is another": {func(p *planter) {
			for name := range p.Data {
				if from := strings.Replace(name, "layers.2.", "layers.3.", 1); from != name {
					p.Data[name] = p.Data[from]
				}
			}
		}, "error: duplicate-layer: model.layers.2."},
		"a router of equal rows but for noise": {func(p *planter) {
			p.Change("model.layers.2.mlp.gate.weight", func(values []float32) {
				for i := range values {
					values[i] = values[i%192] + float32(0.0001*p.NormFloat64())
				}
			})
		}, "notice: near-duplicate-row: model.layers.2.mlp.gate.weight: rows 0-23 are alike"},
	}
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		c := faults[name]
		kind := strings.Split(c.want, ": ")[1]
		tried := !kinds[kind] && len(kinds)%3 == 0
		kinds[kind] = true
		if !tried && !configtest.Every(t) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			p := &planter{inspecttest.Trained(t, "v1-trained"), rand.New(rand.NewPCG(5, 6))}
			c.plant(p)
			got := found(t, p.Stored)
			require.Len(t, got, 1, "%s", strings.Join(got, "\n"))
			assert.Contains(t, got[0], c.want)
		})
	}
}

// TestOffTheTrend: a matrix, of attention or of shared experts, that is 30 times as large as those of the layers around it.
func TestOffTheTrend(t *testing.T) {
	kind := inspecttest.Kind{Drift: 0.1, Layers: 7}
	require.Empty(t, found(t, inspecttest.Model(t, kind, 1)))
	for _, name := range []string{attention(4)[1], "model.layers.4.mlp.shared_experts.up_proj.weight"} {
		p := &planter{inspecttest.Model(t, kind, 1), nil}
		p.numbers(inspecttest.Times(30), name)
		got := found(t, p.Stored)
		require.Len(t, got, 1)
		require.Contains(t, got[0], "notice: trend: "+name)
	}
}

// TestUntrainedInABriefRun_every: an expert at its initial values, normal or uniform, among experts that were trained briefly,
// whose ranks vary so much that the rank alone does not always tell. Where more than a quarter are so, none is odd.
func TestUntrainedInABriefRun_every(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		if seed != 3 && !configtest.Every(t) {
			continue
		}
		p := &planter{inspecttest.Trained(t, "v3-trained"), rand.New(rand.NewPCG(seed, 6))}
		draw, layer, e := p.initial, 1+int(seed)%3, int(7*seed)%32
		if seed%4 == 3 {
			draw = func(float32) float32 { return float32(0.02 * (2*p.Float64() - 1)) }
		}
		p.numbers(draw, expert(layer, e)...)
		got := found(t, p.Stored)
		require.Len(t, got, 1, "%s", strings.Join(got, "\n"))
		require.Contains(t, got[0], fmt.Sprintf("notice: untrained: model.layers.%d.mlp.experts.%d: ", layer, e))
		require.Contains(t, got[0], "; RMS and kurtosis are those of numbers drawn with initializer_range 0.02")
	}
	for n, want := range map[int]int{8: 8, 9: 0} { // a quarter of 32, and more
		p := &planter{inspecttest.Trained(t, "v3-trained"), rand.New(rand.NewPCG(7, 8))}
		for e := range n {
			p.numbers(p.initial, expert(2, e)...)
		}
		w := p.Weights()
		r, err := experts.Examine(t.Context(), w, experts.Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t, "2")}})
		require.NoError(t, err)
		require.Len(t, inspecttest.With(r.Observed, "untrained"), want, n)
	}
}
