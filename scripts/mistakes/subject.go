package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/pack"
)

// subject is a checkpoint in which a mistake is made. It is the weights.Source of what it
// then holds.
type subject struct {
	checkpoint *checkpoint.Checkpoint
	config     *config.Config
	golden     *pack.Pack
	options    verify.Options
	changed    map[string]tensor.Tensor
	moe        int          // the first layer with experts
	expert     int          // of that layer, which the first token chose; another one chose neither it nor the next
	names      *weights.Set // of the checkpoint
	planting   string       // cause of the mistake that is made
	err        error
}

func newSubject(c *checkpoint.Checkpoint, p *pack.Pack) *subject {
	s := &subject{checkpoint: c, config: c.Config, golden: p, changed: map[string]tensor.Tensor{},
		options: verify.Options{Parallelism: 1}}
	for !c.Config.IsMoE(s.moe) {
		s.moe++
	}
	chosen, err := p.Ints(s.expand("{moe}gate.topk_idx"))
	if err != nil {
		s.err = err
		return s
	}
	k := c.Config.MoE.NumExpertsPerTok
	for i := range k {
		s.expert = chosen[i]
		for row := range slices.Chunk(chosen, k) {
			if !slices.Contains(row, s.expert) && !slices.Contains(row, (s.expert+1)%c.Config.MoE.NRoutedExperts) {
				return s
			}
		}
	}
	s.expert = chosen[0]
	return s
}

// make makes the mistake. It says whether it can be made in this checkpoint.
func (s *subject) make(m mistake) bool {
	s.planting = m.cause
	return s.err == nil && m.make(s) && s.err == nil
}

// expand replaces {moe} by the first layer's MLP that has experts, {dense} by one that has
// none, {attn} by an attention, {moe-attn} by that of {moe}'s layer, {index} by the first indexer, {rotated} by the first stage
// behind RoPE, {windowed} and {unrotated} by the attention of the first layer with a window, or without RoPE, {scores} by the first scores of an indexer, {entries} by the first compressor whose windows overlap, {last} by the number of the last layer but
// one, and {e} by the number of an expert that is reached.
func (s *subject) expand(name string) string {
	return strings.NewReplacer("{moe}", fmt.Sprintf("model.layers.%d.mlp.", s.moe), "{dense}", "model.layers.0.mlp.",
		"{attn}", "model.layers.1.self_attn.", "{moe-attn}", fmt.Sprintf("model.layers.%d.self_attn.", s.moe), "{entries}", s.entries(),
		"{rotated}", s.rotated(), "{index}", "model.layers.0.self_attn.indexer.", "{scores}", s.scores(), "{e}", strconv.Itoa(s.expert), "{last}",
		strconv.Itoa(s.config.NumHiddenLayers-2), "{windowed}", s.attention(func(l int) bool { return s.config.Window(l) > 0 }),
		"{unrotated}", s.attention(func(l int) bool { return !s.config.Rotates(l) })).Replace(name)
}

// attention returns the attention of the first layer of which is holds.
func (s *subject) attention(is func(l int) bool) string {
	l := 0
	for l < s.config.NumHiddenLayers && !is(l) {
		l++
	}
	return fmt.Sprintf("model.layers.%d.self_attn.", l)
}

// rotated returns the first stage that RoPE's tables show in.
func (s *subject) rotated() string {
	switch {
	case s.golden.Has(pack.RotaryCos):
		return pack.RotaryCos
	case s.config.Windowed():
		return "model.layers.0.self_attn.query"
	case s.config.HasIndexer():
		return "model.layers.0." + pack.IndexerQueries
	}
	return "model.layers.0." + pack.Attended
}

// scores returns the stage of the first scores of an indexer.
func (s *subject) scores() string {
	if s.config.Windowed() {
		return s.entries() + "indexer.scores"
	}
	return pack.StageOf(0, pack.IndexerScores)
}

// entries returns the module of the first compressor whose windows overlap.
func (s *subject) entries() string {
	l := 0
	for l < s.config.NumHiddenLayers && !s.config.Overlaps(l) {
		l++
	}
	return fmt.Sprintf("model.layers.%d.self_attn.compressor.", l)
}

// unchosen returns the prefix of the first expert that no token chose; that of no expert if there
// is none.
func (s *subject) unchosen() string {
	for l := s.moe; l < s.config.NumHiddenLayers; l++ {
		chosen, err := s.golden.Ints(fmt.Sprintf("model.layers.%d.mlp.gate.topk_idx", l))
		s.err = err
		for e := range s.config.MoE.NRoutedExperts {
			if !slices.Contains(chosen, e) {
				return fmt.Sprintf("model.layers.%d.mlp.experts.%d.", l, e)
			}
		}
	}
	return ""
}

// Tensors implements weights.Source.
func (s *subject) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for info := range s.checkpoint.Tensors() {
			if t, ok := s.changed[info.Name]; ok {
				info.DType = t.DType
			}
			if !yield(info) {
				return
			}
		}
	}
}

// Tensor implements weights.Source.
func (s *subject) Tensor(name string) (tensor.Tensor, error) {
	if t, ok := s.changed[name]; ok {
		return t, nil
	}
	return s.checkpoint.Tensor(name)
}

// stored returns the name that the checkpoint's files have for a weight of its own, expanded.
func (s *subject) stored(name string) string {
	name = s.expand(name)
	if s.names == nil {
		s.names = weights.New(s.checkpoint.Config, s.checkpoint)
	}
	if w := s.names.Find(name); w != nil && !w.Shared {
		return w.Stored
	}
	return name
}

// has says whether the checkpoint holds a weight.
func (s *subject) has(name string) bool {
	name = s.stored(name)
	for t := range s.Tensors() {
		if t.Name == name {
			return true
		}
	}
	return false
}

// edit changes a copy of a weight. It says whether there is one, and its bytes are others then.
func (s *subject) edit(name string, change func(t *tensor.Tensor) bool) bool {
	if name = s.stored(name); !s.has(name) {
		return false
	}
	t, err := s.Tensor(name)
	if err != nil {
		s.err = err
		return false
	}
	before := t.Data
	t.Data = slices.Clone(t.Data)
	if !change(&t) || bytes.Equal(t.Data, before) {
		return false
	}
	s.changed[name] = t
	return true
}

// swap exchanges two weights of equal shape.
func (s *subject) swap(a, b string) bool {
	a, b = s.stored(a), s.stored(b)
	if !s.has(a) || !s.has(b) {
		return false
	}
	x, errX := s.Tensor(a)
	y, errY := s.Tensor(b)
	if errX != nil || errY != nil || !slices.Equal(x.Shape, y.Shape) || x.DType != y.DType {
		return false
	}
	s.changed[a], s.changed[b] = y, x
	return true
}

// swapMLPs exchanges two MLPs, with their scales.
func (s *subject) swapMLPs(a, b string) bool {
	for _, role := range []table.Role{table.GateProj, table.UpProj, table.DownProj} {
		if !s.swapProjections(a+string(role), b+string(role)) {
			return false
		}
	}
	return true
}

// swapProjections exchanges two linear modules, with their scales.
func (s *subject) swapProjections(a, b string) bool {
	swapped := map[string]bool{}
	for _, form := range tensor.Forms() {
		for _, part := range form.Parts {
			if !swapped[part] { // two forms may have a part of one name
				s.swap(a+".weight"+part, b+".weight"+part)
			}
			swapped[part] = true
		}
	}
	s.swap(a+".bias", b+".bias")
	return s.swap(a+".weight", b+".weight")
}

// editBoth changes copies of the weight and of the bias of a linear module, if it has one.
func (s *subject) editBoth(module string, change func(t *tensor.Tensor) bool) bool {
	s.edit(module+".bias", change)
	return s.edit(module+".weight", change)
}

// permute gives expert e of the first layer with experts the weights of order(e).
func (s *subject) permute(order func(e int) int) bool {
	moved := map[string]tensor.Tensor{}
	for _, w := range weights.New(s.config, s).All() {
		if w.Layer == s.moe && w.Expert >= 0 {
			from := s.stored(table.PlaceOf(s.config, w.Owner()).Row.NameIn(s.moe, order(w.Expert)) + w.Part)
			if !s.has(from) || w.Shared {
				return false
			}
			moved[w.Stored], s.err = s.Tensor(from)
		}
	}
	maps.Copy(s.changed, moved)
	return s.err == nil
}

// set changes keys of config.json. It says whether that changes the config.
func (s *subject) set(fields map[string]string) bool {
	raw := map[string]jsontext.Value{}
	for k, v := range fields {
		raw[k] = jsontext.Value(v)
	}
	changed, err := s.config.Override(raw)
	if err != nil {
		return false // this family cannot have it
	}
	s.config = changed
	return true
}

// scale multiplies elements of a BF16 or F32 weight.
func scale(t *tensor.Tensor, by float32, elements []int) bool {
	return apply(t, elements, func(v float32) float32 { return v * by })
}

// apply changes elements of a BF16 or F32 weight.
func apply(t *tensor.Tensor, elements []int, f func(v float32) float32) bool {
	if t.DType != tensor.BF16 && t.DType != tensor.F32 {
		return false
	}
	values, err := t.Float32s(nil)
	if err != nil {
		return false
	}
	for _, i := range elements {
		if v := f(values[i]); t.DType == tensor.BF16 {
			binary.LittleEndian.PutUint16(t.Data[2*i:], uint16(math.Float32bits(tensor.Rounded(v, tensor.BF16))>>16))
		} else {
			binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(v))
		}
	}
	return true
}

// widen stores a BF16 weight in F32.
func widen(t *tensor.Tensor) bool {
	values, err := t.Float32s(nil)
	t.DType, t.Data = tensor.F32, make([]byte, 4*len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(v))
	}
	return err == nil
}

// every are all elements of a weight, row those of one row.
func every(t *tensor.Tensor) (elements []int) {
	for i := range t.Len() {
		elements = append(elements, i)
	}
	return elements
}

func row(t *tensor.Tensor, r int) (elements []int) {
	for i := range t.Shape[1] {
		elements = append(elements, r*t.Shape[1]+i)
	}
	return elements
}

// reorder gives row r of a weight the row order(r).
func reorder(t *tensor.Tensor, order func(r int) int) bool {
	var rows []byte
	for r := range t.Shape[0] {
		rows = append(rows, t.Row(order(r)).Data...)
	}
	t.Data = slices.Clone(rows)
	return true
}
