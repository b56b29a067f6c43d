package verify

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"

	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// kind is operations whose ways of rounding are recognised together.
type kind struct {
	name       string
	operations []string
	ways       [][]string // one way of each operation; HuggingFace's first
	declared   bool       // the way of an operation is declared, and demanded: what no way explains is wrong
}

// single is a kind of one operation, with all of its ways.
func single(operation string) kind {
	k := kind{name: operation, operations: []string{operation}}
	for _, way := range bounds.WaysOf(operation) {
		k.ways = append(k.ways, []string{way})
	}
	return k
}

// The names of kinds of several operations.
const (
	attention  = "attention"
	routedSums = "experts"            // whose sum is recorded
	mixtures   = "experts and shared" // whose sum with the shared experts is recorded alone
)

// kinds lists the kinds.
var kinds = func() []kind {
	var all []kind
	for _, operation := range []string{bounds.Norm, bounds.LatentNorm, bounds.QKNorm, bounds.InputAddNorm, bounds.PostAddNorm,
		bounds.FinalAddNorm, bounds.SwiGLU, bounds.SharedSwiGLU, bounds.Ranks, bounds.ExpertsShared, bounds.Router,
		bounds.Score, bounds.ChoiceScore} {
		all = append(all, single(operation))
	}
	operations := []string{bounds.ExpertsGLU, bounds.ExpertsWeight, bounds.ExpertsW, bounds.ExpertsSum}
	sums := kind{name: routedSums, operations: append(slices.Clone(operations), bounds.ExpertsFactor)}
	for _, sum := range bounds.SharedWays[:2] {
		for _, way := range bounds.ExpertsWays {
			sums.ways = append(sums.ways, append(slices.Clone(way), sum[0]))
		}
	}
	all = append(all, sums)
	mixed := kind{name: mixtures, operations: append(slices.Clone(operations), bounds.ExpertsFactor, bounds.ExpertsShared)}
	for i, sum := range bounds.SharedWays {
		for n, way := range bounds.ExpertsWays {
			if i < 2 || n == 1 || n == 2 { // one sum with shared experts is one in float32
				mixed.ways = append(mixed.ways, slices.Concat(way, sum))
			}
		}
	}
	return append(all, mixed, kind{name: attention, operations: []string{bounds.RoPE, bounds.RoPETables, bounds.Scores,
		bounds.Probs, bounds.AbsorbedQuery, bounds.AbsorbedContext}, ways: bounds.AttentionWays})
}()

// with returns the kind with the declared ways in the place of others.
func (k kind) with(declared map[string]string) kind {
	ways := k.ways
	k.ways = nil
	for _, way := range ways {
		way = slices.Clone(way)
		for n, operation := range k.operations {
			way[n] = cmp.Or(declared[operation], way[n])
			k.declared = k.declared || declared[operation] != ""
		}
		if !slices.ContainsFunc(k.ways, func(other []string) bool { return slices.Equal(other, way) }) {
			k.ways = append(k.ways, way)
		}
	}
	return k
}

// referenceFirst returns the kind with the reference's own way before the others.
func (k kind) referenceFirst(reference map[string]string) kind {
	first := slices.IndexFunc(k.ways, func(way []string) bool {
		return len(way) == 1 && way[0] == reference[k.name]
	})
	if first > 0 {
		k.ways = slices.Concat(k.ways[first:first+1], k.ways[:first], k.ways[first+1:])
	}
	return k
}

// leaveOut leaves out ways that miss far more elements in the first layers than the way that misses fewest. The engine's
// way stays: with a routed sum × 1.01, which moves all elements, it missed at most 1.32 times as many as the best other way.
func (k *kind) leaveOut(misses []int) {
	if len(misses) != len(k.ways) {
		return
	}
	most, ways := 50+4*slices.Min(misses), k.ways
	k.ways = nil
	for i, way := range ways {
		if i == 0 || misses[i] <= most {
			k.ways = append(k.ways, way)
		}
	}
}

// waysOf returns the i-th way of a kind, by operation.
func (k *kind) waysOf(i int) map[string]string {
	ways := map[string]string{}
	for n, operation := range k.operations {
		ways[operation] = k.ways[i][n]
	}
	return ways
}

// misses are the elements of a stage, as bits, that are beyond the limit.
type misses []uint64

// set notes element i.
func (m misses) set(i int) { m[i/64] |= 1 << (i % 64) }

// allMissed returns the misses of a stage of n elements that cannot be compared.
func allMissed(n int) misses {
	m := make(misses, n/64+1)
	for i := range n {
		m.set(i)
	}
	return m
}

// count returns how many elements there are.
func (m misses) count() (n int) {
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

// without returns how many elements miss in m and not in other.
func (m misses) without(other misses) (n int) {
	for i, w := range m {
		if i < len(other) {
			w &^= other[i]
		}
		n += bits.OnesCount64(w)
	}
	return n
}

// total counts the misses of all stages.
func total(stages map[string]misses) (n int) {
	for _, m := range stages {
		n += m.count()
	}
	return n
}

// recognised is what the numbers of a run say of a kind.
type recognised struct {
	kind    *kind
	way     int   // of the kind, which most elements fit
	missed  int   // elements that way does not explain
	rival   int   // the way that comes nearest among those that predict other numbers; -1 if all predict the same
	alone   int   // elements that way explains and the rival does not
	decided bool  // way is the engine's; if not, its way is not known
	misses  []int // the same of all ways
	// recorded says that way explains all elements with the config that the trace holds; missed are those of ours
	recorded bool
	// layers have another way, as kernels may be chosen by the shapes of a layer.
	layers map[int]int
	decode int // way of the rows of decode steps; -1 if that is way
}

// The limits of recognition. Measured: of traces with a fault in one norm, one expert or eps the right way explains at least
// .956 of the elements on which it and another one differ; of faults in all elements of a kind, and of engines whose way is
// not listed, the best way explains .50 to .65.
const (
	leastContrast = 20   // elements that a way must explain alone to be recognised although others miss
	leastShare    = 0.95 // of the elements on which it and a rival differ
)

// decide returns what the misses of each way, by stage, say of a kind. A way without misses is recognised. Another one
// is if it explains nearly all elements on which it differs from each rival, in the stages that it explains if these
// show enough: what it misses then is wrong.
func decide(k *kind, by []map[string]misses) recognised {
	r := recognised{kind: k, missed: total(by[0]), rival: -1, decode: -1}
	for i := range by {
		n := total(by[i])
		if r.misses = append(r.misses, n); n < r.missed {
			r.way, r.missed = i, n
		}
	}
	r.decided = true
	lowest := 2.0
	for i := range by {
		var clean, all [2]int // elements of stages without a miss, of all
		for stage, m := range by[r.way] {
			a, b := by[i][stage].without(m), m.without(by[i][stage])
			all[0], all[1] = all[0]+a, all[1]+b
			if m.count() == 0 {
				clean[0], clean[1] = clean[0]+a, clean[1]+b
			}
		}
		of := all
		if clean[0] >= leastContrast {
			of = clean
		}
		if i == r.way || of[0]+of[1] == 0 { // or the same numbers
			continue
		}
		share := float64(of[0]) / float64(of[0]+of[1])
		if share < lowest || share == lowest && of[0] < r.alone {
			lowest, r.rival, r.alone = share, i, of[0]
		}
		r.decided = r.decided && share >= leastShare && of[0] >= leastContrast
	}
	r.decided = r.decided || r.missed == 0 || k.declared
	if r.decided && r.missed > 0 && !k.declared {
		r.mix(by)
	}
	return r
}

// decide is decide, with a way of its own for attention in the rows of decode steps if no way explains these and the others:
// one with the same RoPE, in which keys of both are.
func (j *job) decide(k *kind, by []map[string]misses) recognised {
	r, decodes := decide(k, by), j.pack.Manifest.DecodeRows(j.in)
	if k.name != attention || r.missed == 0 || decodes == nil {
		return r
	}
	var of [2][]map[string]misses // of prompts, of decode steps
	for _, stages := range by {
		for phase := range of {
			part := map[string]misses{}
			for stage, m := range stages {
				rows := make(misses, len(m))
				for i, width := 0, j.pack.Width(stage); i < 64*len(m); i++ {
					if row := i / width; m[i/64]>>(i%64)&1 > 0 && row < len(decodes) && decodes[row] == (phase == 1) {
						rows.set(i)
					}
				}
				part[stage] = rows
			}
			of[phase] = append(of[phase], part)
		}
	}
	prompts, same, at := decide(k, of[0]), *k, []int(nil)
	same.ways = nil
	var rotated []map[string]misses
	for i, way := range k.ways {
		if slices.Equal(way[:2], k.ways[prompts.way][:2]) { // RoPE, RoPETables
			same.ways, at, rotated = append(same.ways, way), append(at, i), append(rotated, of[1][i])
		}
	}
	steps := decide(&same, rotated)
	if prompts.unexplained() || steps.unexplained() || at[steps.way] == prompts.way {
		return r
	}
	prompts.decode, prompts.missed, prompts.alone = at[steps.way], prompts.missed+steps.missed, min(prompts.alone, steps.alone)
	return prompts
}

// unexplained reports whether the numbers do not show a way: none explains enough, or all explain the same part.
func (r *recognised) unexplained() bool {
	return !r.decided || r.rival < 0 && r.missed > 0 && !r.kind.declared
}

// mix gives the layers in which elements miss another way, if that explains all of a layer's elements and the way of
// the run misses enough of them.
func (r *recognised) mix(by []map[string]misses) {
	missed := map[int]int{}
	r.layers = map[int]int{}
	for stage, m := range by[r.way] {
		missed[pack.Parse(stage).Layer] += m.count()
	}
	for layer, most := range missed {
		for i := range by {
			n := 0
			for stage, m := range by[i] {
				if pack.Parse(stage).Layer == layer {
					n += m.count()
				}
			}
			if _, mixed := r.layers[layer]; n == 0 && most >= leastContrast && !mixed {
				r.layers[layer] = i
				r.missed -= most
			}
		}
	}
}

// ways are the ways of rounding that were found, by operation.
func (r *recognised) ways() map[string]string {
	ways := r.kind.waysOf(r.way)
	for operation := range ways {
		if !r.decided {
			ways[operation] = bounds.Unknown
		}
	}
	return ways
}

// reported is what a report says of a kind.
func (r *recognised) reported() report.Recognised {
	says := report.Recognised{Kind: r.kind.name, Ways: r.ways(), Missed: r.missed, Alone: r.alone,
		WithRecorded: r.recorded}
	for layer, way := range r.layers {
		if says.Layers == nil {
			says.Layers = map[string]map[string]string{}
		}
		says.Layers[strconv.Itoa(layer)] = r.kind.waysOf(way)
	}
	if r.decode >= 0 {
		says.Decode = r.kind.waysOf(r.decode)
	}
	if r.rival >= 0 {
		says.Rival = r.kind.waysOf(r.rival)
	}
	return says
}

// doubt says that the roundings of a kind are not known.
func (r *recognised) doubt() string {
	return fmt.Sprintf("the engine rounds %s in a way that is not known: all roundings that engines are known to do there were "+
		"allowed for; declare them in the manifest's arithmetic.rounding", r.kind.name)
}
