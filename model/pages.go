package model

import (
	"fmt"
	"runtime"

	"dsmoe/model/weights"
)

// Pages are the memory that weights are mapped into: see Options.Pages.
type Pages interface {
	WillNeed(data []byte) // is about to be read
	DontNeed(data []byte) // is not read for a while
}

// willNeed fetches ahead what layer l reads whatever its gate decides, but for an
// embedding, of which it reads rows; which experts it reads is known, and fetched, after that.
// No layer is below 0.
func (p *pass[V]) willNeed(l int) {
	if p.o.Pages == nil || l < 0 {
		return
	}
	for place, w := range p.m.layerWeights(l) {
		if place.Expert < 0 && !place.Row.LookedUp() {
			fetch(p.o.Pages, w)
		}
	}
}

// fetchExperts fetches experts of layer l ahead.
func (p *pass[V]) fetchExperts(l int, experts []int) {
	if p.o.Pages == nil {
		return
	}
	for _, e := range experts {
		for _, w := range p.m.Layer(l).MoE.Experts[e].weights() {
			fetch(p.o.Pages, w)
		}
	}
}

// dropExpert lets the pages of an expert of layer l go, if it will not be read again for a
// gradient.
func (p *pass[V]) dropExpert(l, e int) {
	if p.o.Pages == nil || p.o.Training {
		return
	}
	for _, w := range p.m.Layer(l).MoE.Experts[e].weights() {
		if len(w.Data) > 0 {
			p.o.Pages.DontNeed(w.Data)
		}
	}
}

func fetch(pages Pages, w *Weight) {
	if len(w.Data) > 0 {
		pages.WillNeed(w.Data)
	}
}

// dontNeed lets a layer's pages go, if it will not be read again for a gradient.
func (p *pass[V]) dontNeed(l int) {
	if p.o.Pages == nil || p.o.Training {
		return
	}
	for _, w := range p.m.layerWeights(l) {
		if len(w.Data) > 0 {
			p.o.Pages.DontNeed(w.Data)
		}
	}
}

// unread is a weight of a layer that is in memory only while the layer runs.
type unread struct {
	w   *weights.Weight
	src weights.Unviewed
}

// Hold reads the weights of layer l that Load left out, which are then kept. The error says
// which there is no memory for, or which cannot be read.
func (m *DeepseekForCausalLM) Hold(l int) error {
	need := m.unreadBytes(l)
	for _, w := range m.layerWeights(l) {
		if w.unread == nil || w.Data != nil {
			continue
		}
		if err := w.unread.src.Room(need); err != nil {
			return fmt.Errorf("%w: layer %d needs it", err, l)
		}
		t, err := w.unread.w.View(w.unread.src)
		if err != nil {
			return err
		}
		w.Data, need = t.Data, need-w.unread.w.Bytes()
	}
	return nil
}

// unreadBytes is the size of the weights of layer l that are not in memory.
func (m *DeepseekForCausalLM) unreadBytes(l int) (n int64) {
	for _, w := range m.layerWeights(l) {
		if w.unread != nil && w.Data == nil {
			n += w.unread.w.Bytes()
		}
	}
	return n
}

// drop lets go of what Hold read, if it is not read again for a gradient.
func (p *pass[V]) drop(l int) {
	dropped := false
	for _, w := range p.m.layerWeights(l) {
		if w.unread != nil && !p.o.Training {
			w.Data, dropped = nil, true
		}
	}
	if dropped {
		runtime.GC() // the next layer takes the memory of this one
	}
}
