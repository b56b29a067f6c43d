package model

import (
	"math/bits"
	"sync"
)

// Pages are the memory that weights are mapped into: see Options.Pages.
type Pages interface {
	WillNeed(data []byte) // is about to be read
	DontNeed(data []byte) // is not read for a while
}

// weights are all weights of a layer, in the order in which it reads them.
func (d *DeepseekDecoderLayer) weights() []*Weight {
	list := append([]*Weight{&d.InputLayernorm.Weight}, d.attentionWeights()...)
	list = append(list, &d.PostAttentionLayernorm.Weight)
	if d.MoE == nil {
		return append(list, d.MLP.weights()...)
	}
	list = append(list, &d.MoE.Gate.Weight, &d.MoE.Gate.EScoreCorrectionBias)
	for e := range d.MoE.Experts {
		list = append(list, d.MoE.Experts[e].weights()...)
	}
	if d.MoE.SharedExperts != nil {
		list = append(list, d.MoE.SharedExperts.weights()...)
	}
	return list
}

func (d *DeepseekDecoderLayer) attentionWeights() []*Weight {
	if a := d.SelfAttn; a != nil {
		return []*Weight{&a.QProj.Weight, &a.KProj.Weight, &a.VProj.Weight, &a.OProj.Weight}
	}
	a := d.MLA
	return []*Weight{&a.QProj.Weight, &a.QAProj.Weight, &a.QALayernorm.Weight, &a.QBProj.Weight,
		&a.KVAProjWithMQA.Weight, &a.KVALayernorm.Weight, &a.KVBProj.Weight, &a.OProj.Weight}
}

func (m *DeepseekMLP) weights() []*Weight {
	return []*Weight{&m.GateProj.Weight, &m.UpProj.Weight, &m.DownProj.Weight}
}

// willNeed fetches ahead what layer l reads whatever its gate decides; which experts
// it reads is known, and fetched, after that.
func (p *pass) willNeed(l int) {
	if p.Pages == nil || l >= len(p.m.Model.Layers) {
		return
	}
	d := &p.m.Model.Layers[l]
	list := d.attentionWeights()
	if d.MLP != nil {
		list = append(list, d.MLP.weights()...)
	} else if d.MoE.SharedExperts != nil {
		list = append(list, d.MoE.SharedExperts.weights()...)
	}
	p.fetch(list...)
}

// fetch fetches weights ahead.
func (p *pass) fetch(weights ...*Weight) {
	if p.Pages == nil {
		return
	}
	for _, w := range weights {
		if len(w.Data) > 0 {
			p.Pages.WillNeed(w.Data)
		}
	}
}

// dontNeed lets a layer's pages go, if it will not be read again for a gradient.
func (p *pass) dontNeed(l int) {
	if p.Pages == nil || p.tape != nil {
		return
	}
	for _, w := range p.m.Model.Layers[l].weights() {
		if len(w.Data) > 0 {
			p.Pages.DontNeed(w.Data)
		}
	}
}

// arena hands out the buffers of activations, so that a layer uses those of the layer
// before. It belongs to one pass and one goroutine at a time.
type arena struct {
	free [64][][]float32 // by the logarithm of their capacity
	used [][]float32
}

// arenas keeps the memory of passes for the next ones.
var arenas = sync.Pool{New: func() any { return new(arena) }}

// get returns n numbers, whatever they are.
func (a *arena) get(n int) []float32 {
	class := bits.Len(uint(max(n, 1) - 1))
	if last := len(a.free[class]) - 1; last >= 0 {
		buf := a.free[class][last][:n]
		a.free[class] = a.free[class][:last]
		a.used = append(a.used, buf)
		return buf
	}
	buf := make([]float32, n, 1<<class)
	a.used = append(a.used, buf)
	return buf
}

// mark returns where the buffers handed out from now on begin.
func (a *arena) mark() int { return len(a.used) }

// release takes back the buffers handed out since mark.
func (a *arena) release(mark int) {
	for _, buf := range a.used[mark:] {
		a.put(buf)
	}
	a.used = a.used[:mark]
}

func (a *arena) put(buf []float32) {
	class := bits.Len(uint(cap(buf))) - 1
	a.free[class] = append(a.free[class], buf)
}

// reset takes back all buffers but the one of keep.
func (a *arena) reset(keep []float32) {
	kept := a.used[:0]
	for _, buf := range a.used {
		if len(buf) > 0 && len(keep) > 0 && &buf[0] == &keep[0] {
			kept = append(kept, buf)
			continue
		}
		a.put(buf)
	}
	a.used = kept
}
