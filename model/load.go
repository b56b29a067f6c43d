package model

import (
	"cmp"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Load binds every weight of the decoder that c implies, and of the prediction layers that src
// has, to src's tensors, in any stored form that weights.New knows. Weights are bound as views:
// Load reads only scales and their like. If src has no views (weights.Unviewed), or a weight lies in another order, a
// layer's weights are read when the layer runs. If a weight is missing, has another shape or an unsupported dtype, or if src
// holds tensors that the table does not know, the error is a *weights.MismatchError that lists
// all of them.
func Load(c *config.Config, src weights.Source) (*DeepseekForCausalLM, error) {
	return LoadPart(c, src, func(table.Slot) bool { return true })
}

// LoadPart is Load for the wanted weights. The headers of the others are compared with the
// config, but the weights stay unbound: no module that needs them can be run.
func LoadPart(c *config.Config, src weights.Source, wanted func(table.Slot) bool) (*DeepseekForCausalLM, error) {
	if err := c.Computable(); err != nil {
		return nil, err
	}
	set := weights.New(c, src)
	if err := set.Check(c); err != nil {
		return nil, err
	}
	if wrong := set.WrongShapes(weights.Mapped(src)); wrong != nil {
		return nil, &weights.MismatchError{Wrong: wrong}
	}
	m := newModel(c)
	for s := range table.FamilyOf(c).Required(c, set.Has) {
		if !wanted(s) || s.Layer >= len(m.Model.Layers)+len(m.Model.MTP) {
			continue
		}
		w, err := bind(src, set.Find(s.Name), s.Row.PerLayer())
		if err != nil {
			return nil, err
		}
		w.InFloat32 = InFloat32(c, s.Place)
		*m.at(s.Place) = w
	}
	if c.TieWordEmbeddings && !table.UsesStoredHead(c, set.Has) {
		m.LMHead.Weight = m.Model.EmbedTokens
	}
	for k := range m.Model.MTP { // prediction layers without embedding or head use the model's
		layer := &m.Model.MTP[k]
		if layer.EmbedTokens.Name == "" {
			layer.EmbedTokens = m.Model.EmbedTokens
		}
		if layer.SharedHead.Head.Weight.Name == "" {
			layer.SharedHead.Head = m.LMHead
		}
	}
	return m, nil
}

// InFloat32 reports whether the reference keeps a weight in float32, whatever the compute dtype.
func InFloat32(c *config.Config, p table.Place) bool {
	rules := c.Rules()
	switch p.Role() {
	case table.EScoreCorrectionBias:
		return !rules.Router.CastsRouterBias
	case table.Gate:
		return rules.Router.KeepsGate
	}
	return p.Row.Parameter() || rules.NormsOnce && (p.Module() == table.Norms || p.Role() == table.KVNorm)
}

// bind views a weight, and reads its scales. A layer's weight whose source has no views is read
// when the layer runs.
func bind(src weights.Source, w *weights.Weight, ofLayer bool) (bound Weight, err error) {
	bound.Name = w.Name
	if u, ok := w.AsUnviewed(src); ok && ofLayer {
		bound.Tensor, bound.unread = tensor.Tensor{DType: w.DType, Shape: w.Shape}, &unread{w: w, src: u}
	} else {
		bound.Tensor, err = w.View(src)
	}
	if err != nil || w.Scales == nil {
		return bound, err
	}
	b := w.Scaling().Blocks
	bound.Block = [2]int{b.BlockRows, b.BlockCols}
	if bound.unread == nil || w.Places == nil {
		bound.Grid, err = gridOf(src, w)
	}
	return bound, err
}

// gridOf reads the scales and zeros of a weight.
func gridOf(src weights.Source, w *weights.Weight) (tensor.Grid, error) {
	rows, _ := w.Scaling().Blocks.Grid()
	g, err := w.Grid(0, rows-1, func(side *weights.Weight, begin, end int64) ([]byte, error) {
		t, err := side.View(src)
		if err != nil {
			return nil, err
		}
		return t.Data[begin:end], nil
	})
	return g, w.Failed(err)
}

// at returns the weight at a place of the table.
func (m *DeepseekForCausalLM) at(p table.Place) *Weight {
	switch p.Module() {
	case table.Embedding:
		return &m.Model.EmbedTokens
	case table.Head:
		return &m.LMHead.Weight
	case table.HCHead:
		return m.Model.HCHead.at(p.Role())
	case table.MTP:
		x := &m.Model.MTP[p.Layer-len(m.Model.Layers)] // what its decoder layer does not have
		return map[table.Role]*Weight{
			table.EmbedTokens: &x.EmbedTokens, table.ENorm: &x.ENorm.Weight, table.HNorm: &x.HNorm.Weight,
			table.EHProj:         &x.EHProj.Weight,
			table.SharedHeadNorm: &x.SharedHead.Norm.Weight, table.SharedHeadHead: &x.SharedHead.Head.Weight}[p.Role()]
	}
	if p.Layer < 0 {
		return &m.Model.Norm.Weight
	}
	return m.Layer(p.Layer).at(p)
}

// at returns the weight of a decoder layer.
func (x *DeepseekDecoderLayer) at(p table.Place) *Weight {
	switch role := p.Role(); p.Module() {
	case table.Norms:
		if norm := x.norm(role); norm != nil {
			return &norm.Weight
		}
		return new(Weight) // of attention that is not computed
	case table.DenseMLP:
		return &x.MLP.Linear(role).Weight
	case table.RoutedExperts:
		return &x.MoE.Experts[p.Expert].Linear(role).Weight
	case table.SharedExperts:
		return &x.MoE.SharedExperts.Linear(role).Weight
	case table.Attention:
		if role == table.Sinks {
			return &x.Windowed.Sinks
		}
		name, bias := strings.CutSuffix(string(role), ".bias")
		projection := x.Projection(table.Role(name))
		if bias {
			return &projection.Bias
		}
		return &projection.Weight
	case table.AttnHC:
		return x.AttnHC.at(role)
	case table.FFNHC:
		return x.FFNHC.at(role)
	case table.Compressor:
		return x.Windowed.Compressor.at(role)
	case table.Indexer:
		if x.Windowed != nil {
			ix := x.Windowed.Indexer
			own := map[table.Role]*Weight{table.QBProj: &ix.QBProj.Weight, table.WeightsProj: &ix.WeightsProj.Weight}
			return cmp.Or(own[role], ix.Compressor.at(role))
		}
		ix := x.Indexer
		return map[table.Role]*Weight{table.WQB: &ix.WQB.Weight, table.WK: &ix.WK.Weight, table.KNorm: &ix.KNorm.Weight,
			table.KNormBias: &ix.KNorm.Bias, table.WeightsProj: &ix.WeightsProj.Weight}[role]
	case table.Latent:
		return map[table.Role]*Weight{table.FC1LatentProj: &x.MoE.Latent[0].Weight,
			table.FC2LatentProj: &x.MoE.Latent[1].Weight}[role]
	case table.Router:
		g := &x.MoE.Gate
		return map[table.Role]*Weight{table.Gate: &g.Weight, table.EScoreCorrectionBias: &g.EScoreCorrectionBias,
			table.TID2EID: g.TID2EID, table.SharedExpertGate: &x.MoE.SharedGate.Weight}[role]
	}
	return nil
}

// norm returns the layer's norm of a role; nil for other roles.
func (x *DeepseekDecoderLayer) norm(r table.Role) *DeepseekRMSNorm {
	switch r {
	case table.InputLayernorm:
		return &x.InputLayernorm
	case table.PostAttentionLayernorm:
		return &x.PostAttentionLayernorm
	case table.PostMLPLayernorm:
		if x.PostMLPLayernorm != nil {
			return x.PostMLPLayernorm
		}
		return x.MoE.PostMLPLayernorm
	case table.QNorm:
		return &x.SelfAttn.QNorm
	case table.KNorm:
		return &x.SelfAttn.KNorm
	case table.QALayernorm:
		return &x.MLA.QALayernorm
	case table.KVALayernorm:
		return &x.MLA.KVALayernorm
	case table.QANorm:
		return &x.Windowed.QANorm
	case table.KVNorm:
		return &x.Windowed.KVNorm
	}
	return nil
}

// Projection returns the projection of the layer's attention with a role; nil for other roles.
func (x *DeepseekDecoderLayer) Projection(r table.Role) *Linear {
	if a := x.MLA; a != nil {
		return map[table.Role]*Linear{table.QProj: &a.QProj, table.QAProj: &a.QAProj, table.QBProj: &a.QBProj,
			table.KVAProjWithMQA: &a.KVAProjWithMQA, table.KVBProj: &a.KVBProj, table.OProj: &a.OProj}[r]
	}
	if a := x.Windowed; a != nil {
		return map[table.Role]*Linear{table.QAProj: &a.QAProj, table.QBProj: &a.QBProj, table.KVProj: &a.KVProj,
			table.OAProj: &a.OAProj, table.OBProj: &a.OBProj}[r]
	}
	a := x.SelfAttn
	return map[table.Role]*Linear{
		table.QProj: &a.QProj, table.KProj: &a.KProj, table.VProj: &a.VProj, table.QKVProj: &a.QKVProj,
		table.OProj: &a.OProj}[r]
}

// Linear returns the MLP's matrix with a role, gate_proj, up_proj or down_proj; nil for other roles.
func (m *DeepseekMLP) Linear(r table.Role) *Linear {
	switch r {
	case table.GateProj:
		return &m.GateProj
	case table.UpProj:
		return &m.UpProj
	case table.DownProj:
		return &m.DownProj
	}
	return nil
}

// weights returns the MLP's matrices.
func (m *DeepseekMLP) weights() [3]*Weight {
	return [3]*Weight{&m.GateProj.Weight, &m.UpProj.Weight, &m.DownProj.Weight}
}

// LayerWeights yields the weights of decoder or prediction layer l with their places, in the
// order of the table.
func (m *DeepseekForCausalLM) LayerWeights(l int) iter.Seq2[table.Place, *Weight] {
	return func(yield func(table.Place, *Weight) bool) {
		for p := range table.FamilyOf(m.Config).LayerPlaces(m.Config, l) {
			if !yield(p, m.at(p)) {
				return
			}
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
func (o *Options) dontNeed(w *Weight) {
	if o.Pages != nil && !o.Training && len(w.Data) > 0 {
		o.Pages.DontNeed(w.Data)
	}
}

// Hold reads the weights of layer l that Load left out, and keeps them. It moves those of routed experts out of memory
// where it can. The error names the weight that does not fit into memory or cannot be read.
func (m *DeepseekForCausalLM) Hold(l int) error {
	for place, w := range m.LayerWeights(l) {
		if w.isAbsent() {
			if err := read(l, []*Weight{w}); err != nil {
				return err
			}
			if place.Expert >= 0 {
				w.setAside()
			}
		}
	}
	return nil
}

// layer returns the wanted weights of layer l.
func (m *DeepseekForCausalLM) layer(l int, wanted func(table.Place) bool) (list []*Weight) {
	for place, w := range m.LayerWeights(l) {
		if wanted(place) {
			list = append(list, w)
		}
	}
	return list
}

// isAbsent reports whether a weight has to be read before it is used.
func (w *Weight) isAbsent() bool { return w.unread != nil && w.Data == nil }

// read reads those weights of layer l that are not in memory.
func read(l int, list []*Weight) error {
	need := int64(0)
	for _, w := range list {
		if w.isAbsent() {
			need += w.unread.bytes()
		}
	}
	for _, w := range list {
		if !w.isAbsent() {
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

// bytes returns the size in bytes of the weight in memory, with the scales and zeros that are read with it.
func (u *unread) bytes() int64 {
	n := u.w.Bytes()
	if u.w.Places != nil && u.w.Scales != nil {
		rows, cols := u.w.Scaling().Blocks.Grid()
		n += 2 * tensor.F32.Bytes(int64(rows)*int64(cols))
	}
	return n
}

// drop releases the pages of layer l and the weights that hold read, unless a gradient will read
// them again.
func (p *pass[V]) drop(l int) {
	if p.forget(p.m.layer(l, func(table.Place) bool { return true })) {
		runtime.GC() // the next layer takes this memory
	}
}

// forget releases the pages of weights and the weights that were read, and reports whether any was, unless a gradient
// will read them again.
func (p *pass[V]) forget(list []*Weight) (any bool) {
	for _, w := range list {
		p.o.dontNeed(w)
		if w.unread != nil && !p.o.Training && w.Data != nil {
			if w.unread.free != nil {
				w.unread.free()
			}
			w.Data, w.unread.free, w.unread.kept = nil, nil, false
			if w.unread.w.Places != nil {
				w.Grid = tensor.Grid{}
			}
			any = true
		}
	}
	return any
}

// garbage is how many bytes of experts that were let go may wait for the garbage collector.
const garbage = 256 << 20

// experts yields the listed routed experts of layer l. While it yields one, the weights of that expert are in memory and
// those of the next one are read. Of the weights that it read it then keeps a down_proj that Keep names, outside the
// memory, and lets go of the others; of an expert that runs as a probe it keeps none.
func (p *pass[V]) experts(l int, m *DeepseekMoE, list []int, probes bool) iter.Seq[int] {
	return func(yield func(e int) bool) {
		wait := p.readExpert(l, m, list, 0)
		defer func() { wait() }() // a pass that ends early leaves no reading behind
		gone := int64(0)          // bytes that were let go since the last collection
		for i, e := range list {
			absent, err := wait()
			wait = p.readExpert(l, m, list, i+1)
			if probes {
				p.fetchExperts(l, list[i:min(i+2, len(list))])
			}
			if p.stopIf(err); !yield(e) {
				return
			}
			for _, w := range absent {
				if gone += w.unread.bytes(); w.unread.kept && !probes && w == &m.Experts[e].DownProj.Weight {
					w.setAside()
				} else {
					p.forget([]*Weight{w})
				}
			}
			if gone > garbage {
				runtime.GC()
				gone = 0
			}
		}
	}
}

// readExpert begins to read the weights of the i-th of the experts that are not in memory. What it returns waits for them.
func (p *pass[V]) readExpert(l int, m *DeepseekMoE, list []int, i int) (wait func() ([]*Weight, error)) {
	if i >= len(list) {
		return func() ([]*Weight, error) { return nil, nil }
	}
	weights := m.Experts[list[i]].weights()
	absent := slices.DeleteFunc(weights[:], func(w *Weight) bool { return !w.isAbsent() })
	var g errgroup.Group
	for _, w := range absent {
		g.Go(func() error { return read(l, []*Weight{w}) })
	}
	return func() ([]*Weight, error) { return absent, g.Wait() }
}
