package convert

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model/tensor"
)

// Options are the options of Run; the zero value copies every tensor, in shards of
// 5 GB, under 512 MiB of memory, and proves the result.
type Options struct {
	DType         tensor.DType // of all float weights: F32, F16 or BF16; Invalid keeps each one's own
	Experts       Experts      // the layout of routed experts
	MaxShardBytes int64        // tensor bytes of one file; 0 is 5 GB, negative is one file for all
	Layers        Layers       // keep only these decoder layers; empty keeps all
	Include       []string     // keep only tensors whose per-expert name one of these globs matches
	Exclude       []string     // drop those that one of these matches
	MaxMemory     int64        // bytes of memory to stay below; 0 is 512 MiB

	AllowOverflow bool // write what became infinite or zero in a cast all the same
	NoVerify      bool // do not read the output again and compare it with the source
	NoResume      bool // start over, even if an unfinished conversion could go on

	Version  string                          // of the tool, for the manifest
	Progress func(phase string, n, of int64) // told of bytes as they are done, one call at a time
	disk     *disk                           // nil is the real one
}

// The limits of Options.MaxMemory.
const (
	defaultMemory = 512 << 20
	minMemory     = 64 << 20
)

func (o Options) withDefaults() Options {
	if o.MaxShardBytes == 0 {
		o.MaxShardBytes = 5_000_000_000
	}
	if o.MaxShardBytes < 0 {
		o.MaxShardBytes = 1 << 62
	}
	if o.MaxMemory == 0 {
		o.MaxMemory = defaultMemory
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	if o.disk == nil {
		o.disk = &disk{}
	}
	return o
}

// check refuses options that make no sense.
func (o Options) check() error {
	if o.DType != tensor.Invalid {
		if _, err := tensor.NewDequantiser(o.DType); err != nil {
			return fmt.Errorf("dtype %s: weights are written as F32, F16 or BF16", o.DType)
		}
	}
	if o.MaxMemory < minMemory {
		return fmt.Errorf("%d bytes of memory are too few: %d are the least", o.MaxMemory, minMemory)
	}
	for _, glob := range slices.Concat(o.Include, o.Exclude) {
		if _, err := path.Match(glob, ""); err != nil {
			return fmt.Errorf("%q is not a glob: * stands for anything, ? for a character, [a-z] for one of a set", glob)
		}
	}
	return nil
}

// Experts is a layout of routed experts.
type Experts string

// The layouts.
const (
	KeepExperts  Experts = ""           // as they are
	FusedExperts Experts = "fused"      // one gate_up_proj and one down_proj per layer
	PerExpert    Experts = "per-expert" // three projections per expert
)

// Set reads a flag.
func (e *Experts) Set(text string) error {
	switch text {
	case "keep":
		*e = KeepExperts
	case string(FusedExperts), string(PerExpert):
		*e = Experts(text)
	default:
		return errors.New("not fused, per-expert or keep")
	}
	return nil
}

// String returns what Set reads.
func (e *Experts) String() string {
	if *e == KeepExperts {
		return "keep"
	}
	return string(*e)
}

// Type names the flag's values in a help text.
func (e *Experts) Type() string { return "layout" }

// Layers is a set of decoder layers; empty, it is all of them.
type Layers []LayerRange

// LayerRange is the layers From to To, both included.
type LayerRange struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// Set reads "0-3,7".
func (l *Layers) Set(text string) error {
	var ranges Layers
	for one := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(one), "-")
		if !isRange {
			to = from
		}
		a, errA := strconv.ParseUint(from, 10, 20)
		b, errB := strconv.ParseUint(to, 10, 20)
		if errA != nil || errB != nil || a > b {
			return errors.New("not layers such as 0-3,7")
		}
		ranges = append(ranges, LayerRange{int(a), int(b)})
	}
	*l = ranges
	return nil
}

// String returns what Set reads.
func (l *Layers) String() string {
	var parts []string
	for _, r := range *l {
		text := strconv.Itoa(r.From)
		if r.To != r.From {
			text += "-" + strconv.Itoa(r.To)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ",")
}

// Type names the flag's values in a help text.
func (l *Layers) Type() string { return "layers" }

// has says whether a layer is in the set.
func (l Layers) has(layer int) bool {
	return len(l) == 0 || slices.ContainsFunc(l, func(r LayerRange) bool { return r.From <= layer && layer <= r.To })
}

// prefix returns n if the set is the layers 0 to n-1.
func (l Layers) prefix() (n int, ok bool) {
	if len(l) == 0 {
		return 0, false
	}
	for l.has(n) {
		n++
	}
	ok = n > 0 && !slices.ContainsFunc(l, func(r LayerRange) bool { return r.To >= n })
	return n, ok
}

// filter decides which tensors are kept, and remembers which globs did anything.
type filter struct {
	layers           Layers
	include, exclude []string
	used             map[string]bool
}

func newFilter(o Options) *filter {
	return &filter{layers: o.Layers, include: o.Include, exclude: o.Exclude, used: map[string]bool{}}
}

// keeps decides about a tensor by its per-expert name. Scales go with their weight.
func (f *filter) keeps(name string) bool {
	name = strings.TrimSuffix(name, scaleSuffix)
	if layer, ok := layerOf(name); ok && !f.layers.has(layer) {
		return false
	}
	return (len(f.include) == 0 || f.match(f.include, name)) && !f.match(f.exclude, name)
}

func (f *filter) match(globs []string, name string) (any bool) {
	for _, glob := range globs {
		if ok, _ := path.Match(glob, name); ok {
			f.used[glob] = true
			any = true
		}
	}
	return any
}

// unused are the globs that matched nothing, most likely for a typing mistake.
func (f *filter) unused() (problems []Problem) {
	for _, glob := range slices.Concat(f.include, f.exclude) {
		if !f.used[glob] {
			problems = append(problems, Problem{Cause: fmt.Sprintf("the glob %q matches no tensor", glob)})
		}
	}
	return problems
}

// layerOf returns the layer in "model.layers.17.…".
func layerOf(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "model.layers.")
	digits, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil
}
