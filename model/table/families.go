package table

import (
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
)

// families is the list of all tables; a new family is a file and a line here.
var families = []*Family{&familyV1, &familyV2, &familyV3, &familyAXK1, &familyVL2, &familyV32, &familyV4, &familyV41,
	&familyDots1, &familyGLM4MoE, &familyHYV3, &familyMiniMaxM2, &familyExaoneMoE, &familyErnie45MoE,
	&familySarvamMoE, &familyLing2,
	&familyKimiLinear, &familyBailingHybrid, &familyMiMoV2Flash, &familyAfmoe, &familyQwen3Next, &familyFlint,
	&familyLing1, &familyMistral4, &familyAXK2, &familyLaguna, &familyKolibri1, &familyLaraMini, &familyDots3Note,
	&familyBeam, &familyStep3p5, &familyMiniMaxM3, &familyGLM5Next, &familyQwen35MoE, &familyHYV4, &familyMistralLarge3, &familyMistralLarge4,
	&familyNemotronH, &familyLongcatFlash}

// FamilyOf returns the table of c's model_type. Every model_type that package
// config accepts has one.
func FamilyOf(c *config.Config) *Family {
	for _, f := range families {
		if slices.Contains(f.ModelTypes, c.ModelType) {
			return f
		}
	}
	panic("table: no table for model_type " + strconv.Quote(c.ModelType))
}

// PlaceOf is Family.Place for c's family. c may be nil: then the place has no row.
func PlaceOf(c *config.Config, name string) Place {
	if c == nil {
		_, layer, expert := Cut(name)
		return Place{nil, layer, expert}
	}
	return FamilyOf(c).Place(name)
}

// InModel reports whether a tensor of that name is one of a language model, as the table and the reference
// name them.
func InModel(name string) bool {
	return strings.HasPrefix(name, "model.") || strings.HasPrefix(name, "lm_head.")
}

// Outside reports whether the tensor of that name is of what c has beside the language model, such as a
// vision tower.
func Outside(c *config.Config, name string) bool {
	switch {
	case c.Within() == "" || FamilyOf(c).Unknown != nil:
		return false
	case c.Prefix() == "": // towers beside the decoder's layers
		return !ofDecoder(name) && !strings.HasPrefix(name, "lm_head.")
	}
	return !InModel(name) && !strings.HasPrefix(name, c.Prefix())
}

// Ignores reports whether a checkpoint of c may hold the tensor of that name beyond the table.
func (f *Family) Ignores(c *config.Config, name string) bool {
	_, layer, _ := Cut(name)
	return Outside(c, name) || f.Leaves(name) || f.LeavesLayers && layer >= c.NumHiddenLayers || f.Unused(c, name)
}

// Unused reports whether the reference computes nothing with the tensor of that name, or derives it anew.
func (f *Family) Unused(c *config.Config, name string) bool {
	pattern, layer, expert := Cut(name)
	return layer < c.NumHiddenLayers+c.NumNextNPredictLayers && expert < c.Choices() &&
		slices.ContainsFunc(f.Ignored, func(r Row) bool { return r.Name == pattern && r.Holds(c, layer) })
}

// Leaves reports whether the tensor of that name is of a prediction layer that the reference leaves out, see Family.Left.
func (f *Family) Leaves(name string) bool {
	return slices.ContainsFunc(f.Left, func(left string) bool { return strings.HasPrefix(name, left) })
}
