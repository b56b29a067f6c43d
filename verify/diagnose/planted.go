package diagnose

import (
	"dsmoe/model"
	"dsmoe/verify/pack"
)

// Planted returns a model that differs from m by the known mistake id in a layer. What undoes a mistake in ours makes
// it in the reference: Planted is a reference whose failure the mistake explains. It returns nil if the mistake cannot
// be made there, or is read off the numbers of a failed stage. Of several forms of a mistake, variant counts the
// possible ones.
func Planted(m *model.DeepseekForCausalLM, p *pack.Pack, in *model.Input, o model.Options, layer int, id string, variant int) *Trial {
	f := &Failure{Pack: p, Model: m, In: in, Options: o, Layer: layer, Layers: indices(len(m.Model.Layers))}
	for _, m := range mistakes(f) {
		if m.id != id {
			continue
		}
		if x := f.NewTrial(); m.undo(x) != "" {
			if variant == 0 {
				return x
			}
			variant--
		}
	}
	return nil
}
