package convert

// The two layouts of routed experts, and how names and elements map between them.
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
	"fmt"
	"slices"
	"strconv"
	"strings"

	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// scaleSuffix makes the name of the scales of an FP8 weight.
const scaleSuffix = "_scale_inv"

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

// fused is a name of the fused layout, taken apart.
type fused struct {
	group string // "model.layers.3.mlp.experts"
	parts []string
	scale bool
}

// parseFused reads "….mlp.experts.gate_up_proj" and its like.
func parseFused(name string) (f fused, ok bool) {
	at := strings.LastIndex(name, expertsMark)
	if at < 0 {
		return f, false
	}
	rest, scale := strings.CutSuffix(name[at+len(expertsMark):], scaleSuffix)
	for _, fusion := range fusions {
		if rest == fusion.name {
			return fused{name[:at+len(expertsMark)-1], fusion.parts, scale}, true
		}
	}
	return f, false
}

// expertName is the per-expert name of one part of a fused tensor.
func (f fused) expertName(expert int, part string) string {
	name := f.group + "." + strconv.Itoa(expert) + "." + part + ".weight"
	if f.scale {
		name += scaleSuffix
	}
	return name
}

// parseExpert reads "….mlp.experts.17.up_proj.weight" and its scales' name: which
// fused tensor it belongs to, as which expert and which part.
func parseExpert(name string) (fusedName string, expert, part int, ok bool) {
	at := strings.LastIndex(name, expertsMark)
	if at < 0 {
		return "", 0, 0, false
	}
	at += len(expertsMark)
	digits, rest, _ := strings.Cut(name[at:], ".")
	expert, err := strconv.Atoi(digits)
	if err != nil || expert < 0 || strconv.Itoa(expert) != digits {
		return "", 0, 0, false
	}
	rest, scale := strings.CutSuffix(rest, scaleSuffix)
	for _, fusion := range fusions {
		if i := slices.Index(fusion.parts, strings.TrimSuffix(rest, ".weight")); i >= 0 && strings.HasSuffix(rest, ".weight") {
			fusedName = name[:at] + fusion.name
			if scale {
				fusedName += scaleSuffix
			}
			return fusedName, expert, i, true
		}
	}
	return "", 0, 0, false
}

// splitFused returns the per-expert tensors that a fused one consists of, in the
// order of its elements. want is the shape of one expert's part if the config says
// it, experts their number.
func splitFused(info tensor.Info, f fused, experts int, want func(name string) []int) ([]part, error) {
	if len(info.Shape) != 3 || info.Shape[1]%len(f.parts) != 0 {
		return nil, fmt.Errorf("shape %v is not that of fused experts", info.Shape)
	}
	if info.Shape[0] != experts {
		return nil, fmt.Errorf("shape %v: %d experts, config says %d", info.Shape, info.Shape[0], experts)
	}
	shape := []int{info.Shape[1] / len(f.parts), info.Shape[2]}
	var parts []part
	for e := range experts {
		for _, p := range f.parts {
			name := f.expertName(e, p)
			if w := want(name); w != nil && !slices.Equal(w, shape) {
				return nil, fmt.Errorf("shape %v: %v for one expert's %s, config says %v", info.Shape, shape, p, w)
			}
			offset := int64(len(parts)) * int64(shape[0]) * int64(shape[1])
			parts = append(parts, part{Info: tensor.Info{Name: name, DType: info.DType, Shape: shape}, source: info.Name, offset: offset})
		}
	}
	return parts, nil
}

// fusedShape returns the shape of the fused tensor that the parts, in the order of
// its elements, make up, or what keeps them from it.
func fusedShape(parts []part, experts int) ([]int, error) {
	first := parts[0]
	for _, p := range parts {
		if len(p.Shape) != 2 || !slices.Equal(p.Shape, first.Shape) {
			return nil, fmt.Errorf("cannot be fused: %s has shape %v, but %s %v",
				safetensors.Quote(first.Name), first.Shape, safetensors.Quote(p.Name), p.Shape)
		}
	}
	return []int{experts, first.Shape[0] * len(parts) / experts, first.Shape[1]}, nil
}
