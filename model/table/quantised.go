package table

import (
	"iter"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Form returns the stored form in which a checkpoint of c's quantization_config holds the
// weight. It covers the matrices of attention, MLPs and experts, those of prediction layers too,
// as DeepSeek-V3 is published, of indexers wq_b and wk, and DeepSeek-V4's e_proj and h_proj. Embedding, head, gates,
// norms, biases, compressors and what else a prediction layer has of its own are plain, and so are the modules that
// modules_to_not_convert lists.
func (s Slot) Form(c *config.Config) *tensor.Form {
	if len(s.Shape) != 2 || !c.Quantization.Announced() || s.Excepted(c) {
		return tensor.Plain
	}
	form := tensor.FormOf(s.Scheme(c).Method)
	switch s.Module() {
	case RoutedExperts:
		if form == tensor.FP8 && c.Windowed() && c.Quantization.Experts != "fp8" {
			return tensor.FP4
		}
		return form
	case Attention, DenseMLP, SharedExperts:
		return form
	case Indexer:
		if s.Role() == WQB || s.Role() == WK || s.Role() == QBProj {
			return form
		}
	case MTP:
		if s.Role() == eProj || s.Role() == hProj {
			return form
		}
	}
	return tensor.Plain
}

// Tensors returns the header entries of the tensors that a checkpoint of c holds the weight in, if
// plain ones have dtype d: the weight's own first.
func (s Slot) Tensors(c *config.Config, d tensor.DType) []tensor.Info {
	switch {
	case s.Row.Integer():
		d = tensor.I64
	case s.Row.Parameter() && c.Windowed(), s.Role() == Gate && s.Row.Float32(c):
		d = tensor.F32
	}
	form := s.Form(c)
	all := form.Tensors(s.Name, s.Shape, d, s.Scheme(c).Block)
	if form == tensor.FP8 && c.Windowed() && c.Quantization.PowerOfTwo && c.Quantization.Experts != "fp8" {
		all[1].DType = tensor.F8E8M0
	}
	return all
}

// Implied yields every tensor that a checkpoint of c holds, and the module of its weight: plain
// ones in TorchDType, prediction layers, whose module is MTP, last.
func (f *Family) Implied(c *config.Config) iter.Seq2[Module, tensor.Info] {
	return func(yield func(Module, tensor.Info) bool) {
		for _, slots := range []iter.Seq[Slot]{f.Slots(c), f.MTPSlots(c)} {
			for s := range slots {
				module := s.Module()
				if s.Layer >= c.NumHiddenLayers {
					module = MTP
				}
				for _, info := range s.Tensors(c, TorchDType(c)) {
					if !yield(module, info) {
						return
					}
				}
			}
		}
	}
}

// Excepted reports whether modules_to_not_convert lists the weight's module.
func (s Slot) Excepted(c *config.Config) bool {
	return c.StaysUnquantised(s.modules(c)...)
}

// Scheme returns how quantization_config says that the weight's module is stored.
func (s Slot) Scheme(c *config.Config) config.Scheme {
	if c.Quantization.Groups == nil { // all have one
		return c.SchemeOf()
	}
	return c.SchemeOf(s.modules(c)...)
}

// modules returns what the table and files call the weight's module.
func (s Slot) modules(c *config.Config) []string {
	names := []string{strings.TrimSuffix(s.Name, ".weight")}
	for _, n := range FamilyOf(c).Namings {
		names = append(names, strings.TrimSuffix(n.Of(c, s.Name), ".weight"))
	}
	return names
}
