package model

import (
	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Load binds every weight of the decoder that c implies, and of the prediction layers that src
// has, to src's tensors, in any form that weights.New knows, as views: nothing is read but scales. Where src has
// no views (weights.Unviewed), a layer's weights are read when it runs. If a
// weight is missing, has another shape or an unsupported dtype, or if src holds tensors
// that the table does not know, the error is a *weights.MismatchError with all of them.
func Load(c *config.Config, src weights.Source) (*DeepseekForCausalLM, error) {
	return LoadPart(c, src, func(table.Slot) bool { return true })
}

// LoadPart is Load for the weights that are wanted. The others are held against the config by
// their headers, and stay unbound: nothing that needs them can be run.
func LoadPart(c *config.Config, src weights.Source, wanted func(table.Slot) bool) (*DeepseekForCausalLM, error) {
	set := weights.New(c, src)
	if err := set.Check(c); err != nil {
		return nil, err
	}
	m := newModel(c)
	for s := range table.FamilyOf(c).Required(c, set.Has) {
		if !wanted(s) {
			continue
		}
		w, err := bind(src, set.Find(s.Name), s.Row.PerLayer())
		if err != nil {
			return nil, err
		}
		*m.at(s.Place) = w
	}
	if c.TieWordEmbeddings && !table.UsesStoredHead(c, set.Has) {
		m.LMHead.Weight = m.Model.EmbedTokens
	}
	m.shareCopies()
	return m, nil
}

// shareCopies gives the model's embedding and head to prediction layers without their own.
func (m *DeepseekForCausalLM) shareCopies() {
	for k := range m.Model.MTP {
		layer := &m.Model.MTP[k]
		if layer.EmbedTokens.Name == "" {
			layer.EmbedTokens = m.Model.EmbedTokens
		}
		if layer.SharedHead.Head.Weight.Name == "" {
			layer.SharedHead.Head = m.LMHead
		}
	}
}

// bind views a weight, and reads its scales if it has any. One of a layer whose source has
// no views is read when the layer runs.
func bind(src weights.Source, w *weights.Weight, ofLayer bool) (bound Weight, err error) {
	bound.Name = w.Name
	if u, ok := w.AsUnviewed(src); ok && ofLayer {
		bound.Tensor, bound.unread = tensor.Tensor{DType: w.DType, Shape: w.Shape}, &unread{w, u}
	} else {
		bound.Tensor, err = w.View(src)
	}
	if err != nil || w.Scales == nil {
		return bound, err
	}
	bound.Block = w.Block
	scales, err := w.Scales.View(src)
	if err != nil {
		return bound, err
	}
	bound.Scales, err = scales.Float32s(nil)
	return bound, err
}
