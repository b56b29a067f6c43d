package model

import (
	"fmt"
	"runtime"

	"dsmoe/model/tensor"
)

// willNeed fetches ahead the weights that layer l reads whatever its gate decides, except an
// embedding, of which it reads only rows. fetchExperts fetches the experts once the gate has
// chosen them. A negative l stands for no layer.
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

// fetch fetches a weight ahead.
func fetch(pages Pages, w *Weight) {
	if len(w.Data) > 0 {
		pages.WillNeed(w.Data)
	}
}

// dontNeed releases the pages of a weight, unless a gradient will read it again.
func (p *pass[V]) dontNeed(w *Weight) {
	if p.o.Pages != nil && !p.o.Training && len(w.Data) > 0 {
		p.o.Pages.DontNeed(w.Data)
	}
}

// Hold reads the weights of layer l that Load left out, and keeps them. The error names the
// weight that does not fit into memory or cannot be read.
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
		need -= w.unread.bytes()
		if w.unread.w.Places != nil && w.unread.w.Scales != nil {
			if w.Grid, err = gridOf(w.unread.src, w.unread.w); err != nil {
				return err
			}
		}
		w.Data = t.Data
	}
	return nil
}

// unreadBytes returns the size in bytes of the weights of layer l that are not in memory.
func (m *DeepseekForCausalLM) unreadBytes(l int) (n int64) {
	for _, w := range m.layerWeights(l) {
		if w.unread != nil && w.Data == nil {
			n += w.unread.bytes()
		}
	}
	return n
}

// bytes returns the size in bytes of the weight in memory, with the scales and zeros that are read with it.
func (u *unread) bytes() int64 {
	n := u.w.Bytes()
	if u.w.Places != nil && u.w.Scales != nil {
		rows, cols := u.w.Scaling().Blocks.Grid()
		n += 2 * tensor.F32.Bytes(int64(rows)*int64(cols))
	}
	return n
}

// drop releases the pages of layer l and the weights that Hold read, unless a gradient will read
// them again.
func (p *pass[V]) drop(l int) {
	dropped := false
	for _, w := range p.m.layerWeights(l) {
		p.dontNeed(w)
		if w.unread != nil && !p.o.Training {
			w.Data, dropped = nil, true
			if w.unread.w.Places != nil {
				w.Grid = tensor.Grid{}
			}
		}
	}
	if dropped {
		runtime.GC() // the next layer takes this memory
	}
}
