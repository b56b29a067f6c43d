package model

import (
	"context"
	"fmt"
	"slices"
)

// Course lists the parts of a model that a pass runs, and the input of a part whose
// predecessor is not run. A pass does not touch the weights of other parts. The zero Course
// runs only RoPE's tables.
type Course[V any] struct {
	Embedding   bool  // embed_tokens
	Layers      []int // layers of the decoder, ascending
	Head        bool  // the final norm and lm_head
	Predictions int   // number of prediction layers behind the head
	// Start returns the input of layer l, [batch, seq, hidden_size]; num_hidden_layers stands
	// for the head. It is called where the part before is not run, and for the layers of
	// Given; it may be nil if no part needs it.
	Start func(l int) (V, error)
	// Given lists layers that begin with Start's result although the part before is run.
	Given []int
}

// WholeCourse runs the whole decoder, and the first prediction layers.
func WholeCourse[V any](m *DeepseekForCausalLM, predictions int) *Course[V] {
	return &Course[V]{Embedding: true, Layers: firstLayers(len(m.Model.Layers)), Head: true, Predictions: predictions}
}

// firstLayers returns the numbers of the first n layers.
func firstLayers(n int) (layers []int) {
	for l := range n {
		layers = append(layers, l)
	}
	return layers
}

// check returns an error if the course cannot be run.
func (c *Course[V]) check(m *DeepseekForCausalLM, in *Input) error {
	switch n := c.Predictions; {
	case n > m.PredictionLayers():
		return fmt.Errorf("%d prediction layers, the model has %d", n, m.PredictionLayers())
	case n >= in.Seq && n > 0:
		return fmt.Errorf("input: sequences of %d tokens leave nothing to predict for %d prediction layers", in.Seq, n)
	}
	return nil
}

// follows reports whether layer l, or the head, takes the output of the part before.
func (c *Course[V]) follows(l int) bool {
	return !slices.Contains(c.Given, l) && (l == 0 && c.Embedding || l > 0 && slices.Contains(c.Layers, l-1))
}

// Run runs the parts of the model that c lists, as Forward would. It returns the model's logits
// [batch, seq, vocab_size] if c runs the head, else the output [batch, seq, hidden_size] of
// the last decoder layer.
func (n *Network[V]) Run(ctx context.Context, c *Course[V]) (y V, err error) {
	if err := c.check(n.Model, n.Input); err != nil {
		return y, err
	}
	return n.run(ctx, func(p *pass[V]) V {
		p.course = c
		return p.run()
	})
}

// run runs the course.
func (p *pass[V]) run() (x V) {
	c := p.course
	if c.Embedding {
		x = p.embed()
	}
	p.tables()
	for _, l := range c.Layers {
		x = p.within(l, p.start(l, x), func(x V) V { return p.layer(l, x) })
	}
	if !c.Head {
		return x
	}
	logits, h := p.head(p.start(len(p.m.Model.Layers), x))
	for k := range c.Predictions {
		h = p.within(len(p.m.Model.Layers)+k, h, func(h V) V { return p.predict(k, h) })
	}
	return logits
}

// start returns the input of layer l, or of the head; x is the output of the part before.
func (p *pass[V]) start(l int, x V) V {
	if p.course.follows(l) {
		return x
	}
	x, err := p.course.Start(l)
	p.stopIf(err)
	return x
}

// next returns the layer that is run after layer l, or -1 if l is the last.
func (p *pass[V]) next(l int) int {
	c, first := p.course, len(p.m.Model.Layers)
	i, _ := slices.BinarySearch(c.Layers, l+1)
	switch prediction := max(first, l+1); {
	case i < len(c.Layers):
		return c.Layers[i]
	case prediction < first+c.Predictions:
		return prediction
	}
	return -1
}

// tables makes RoPE's tables, as stages.
func (p *pass[V]) tables() {
	cos, sin := p.Tables(p.rotary)
	p.cos, p.sin = p.table("cos", cos), p.table("sin", sin)
}

// table shows one of RoPE's tables [seq, half] as the reference's module returns it: twice, side
// by side, or once where the reference rotates complex numbers.
func (p *pass[V]) table(name string, table V) V {
	name = "model.rotary_emb." + name
	if p.rotary.Whole {
		return p.stage(name, table)
	}
	once, half := &Input{Batch: 1, Seq: p.in.Seq}, p.rotary.Half
	twice := p.stage(name, p.Move(joinColumns(once, half, half), table, table))
	return p.Move(TakeColumns(once, 2*half, 0, half), twice)
}
