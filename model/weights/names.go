package weights

// The two layouts of routed experts, and how names map between them.
//
//	per expert                                   fused (transformers 5 writes both)
//	….mlp.experts.{e}.gate_proj.weight [I, H]    ….mlp.experts.gate_up_proj [E, 2I, H],
//	….mlp.experts.{e}.up_proj.weight   [I, H]    expert e is gate's rows, then up's
//	….mlp.experts.{e}.down_proj.weight [H, I]    ….mlp.experts.down_proj    [E, H, I]
//
// The scales of FP8 weights have the suffix _scale_inv in both and are laid out
// alike: of a fused pair first those of gate, then those of up. Every per-expert
// tensor is one run of the fused one's elements, so both directions are copies.

import (
	"slices"
	"strconv"
	"strings"
)

// ScaleSuffix makes the name of the scales of an FP8 weight: weight_scale_inv.
const ScaleSuffix = "_scale_inv"

// expertsMark is what stands before an expert's number, or a fused tensor's name.
// shared_experts do not have it.
const expertsMark = ".mlp.experts."

// fusions lists the fused tensors and the projections that each is made of.
var fusions = [...]struct {
	name  string
	parts []string
}{
	{"gate_up_proj", []string{"gate_proj", "up_proj"}},
	{"down_proj", []string{"down_proj"}},
}

// Fused is a name of the fused layout, taken apart.
type Fused struct {
	Group string   // the module of the experts: "model.layers.3.mlp.experts"
	Parts []string // the projections in the order of the rows: gate_proj, up_proj
	Scale bool     // it holds the scales of FP8 weights
}

// ParseFused reads "….mlp.experts.gate_up_proj" and its like.
func ParseFused(name string) (f Fused, ok bool) {
	at := strings.LastIndex(name, expertsMark)
	if at < 0 {
		return f, false
	}
	rest, scale := strings.CutSuffix(name[at+len(expertsMark):], ScaleSuffix)
	for _, fusion := range fusions {
		if rest == fusion.name {
			return Fused{name[:at+len(expertsMark)-1], fusion.parts, scale}, true
		}
	}
	return f, false
}

// ExpertName is the per-expert name of one part of a fused tensor.
func (f Fused) ExpertName(expert int, part string) string {
	name := f.Group + "." + strconv.Itoa(expert) + "." + part + ".weight"
	if f.Scale {
		name += ScaleSuffix
	}
	return name
}

// Place is where a per-expert tensor lies in the fused one.
type Place struct {
	Fused  string // name of the fused tensor
	Expert int    // index along its first axis
	Part   int    // index of the projection among Fused.Parts
}

// CutExpert takes the number of a routed expert out of a name: "….mlp.experts.", 17 and
// ".up_proj.weight". A number with a sign or with zeros before it is none.
func CutExpert(name string) (before string, expert int, after string, ok bool) {
	at := strings.LastIndex(name, expertsMark)
	if at < 0 {
		return name, 0, "", false
	}
	at += len(expertsMark)
	digits, _, _ := strings.Cut(name[at:], ".")
	expert, err := strconv.Atoi(digits)
	if err != nil || expert < 0 || strconv.Itoa(expert) != digits {
		return name, 0, "", false
	}
	return name[:at], expert, name[at+len(digits):], true
}

// ParseExpert reads "….mlp.experts.17.up_proj.weight" and its scales' name.
func ParseExpert(name string) (p Place, ok bool) {
	experts, expert, rest, ok := CutExpert(name)
	if !ok {
		return p, false
	}
	rest, scale := strings.CutSuffix(strings.TrimPrefix(rest, "."), ScaleSuffix)
	projection, isWeight := strings.CutSuffix(rest, ".weight")
	for _, fusion := range fusions {
		i := slices.Index(fusion.parts, projection)
		if i < 0 || !isWeight {
			continue
		}
		p = Place{Fused: experts + fusion.name, Expert: expert, Part: i}
		if scale {
			p.Fused += ScaleSuffix
		}
		return p, true
	}
	return p, false
}
