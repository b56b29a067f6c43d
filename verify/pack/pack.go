// Package pack reads golden packs: directories of tensors that a reference run gave, with a manifest.
//
// Open checks the manifest and re-hashes the files; Pack.Tensor and its kin read a golden tensor.
// The package also names the stages of packs, reads files of tokens, and tells whether a pack was
// recorded from a model of the same shapes. It runs no model.
package pack

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Pack is a golden pack that Open has opened.
type Pack struct {
	Dir      string       // as OpenPack was given it
	Manifest Manifest     // what manifest.json says
	Hash     string       // of manifest.json: "sha256:…"
	DType    tensor.DType // the reference's compute dtype

	// Replaced are tensors in the place of those of the files, with these names: what a reference with a
	// mistake would have recorded.
	Replaced map[string]tensor.Tensor

	Unread []Unread // tensors of a dump that are no part of the trace
	// Routing says that the trace has choices of experts alone.
	Routing bool

	// adds what a trace without a manifest has in a model of configuration c; nil of packs
	complete func(c *config.Config) error
	// read bytes of stages that lie elsewhere, from a byte of the stage on
	elsewhere map[string]func(data []byte, at int64) error

	stages map[string]string // by the names of tensors in files: stages that have other names there, see Spell

	mu      sync.Mutex
	file    string // whose header was read last
	extents map[string]extent
	from    int64 // where its tensors begin
}

// Unread are tensors of a dump that are no part of the trace.
type Unread struct {
	Kind  string `json:"kind"`  // their name, with * for the number of a layer
	Count int    `json:"count"` // of tensors
	Why   string `json:"why"`   // they are no part
}

const (
	manifestName = "manifest.json"
	maxManifest  = 16 << 20 // bytes
)

// Open reads the manifest of the golden pack in dir, checks it, and re-hashes
// every file it lists. All problems are in one error.
func Open(dir string) (*Pack, error) {
	p := &Pack{Dir: dir}
	if err := Look(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, manifestName)
	data, err := readSmall(path, maxManifest)
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(data)
	p.Hash = "sha256:" + hex.EncodeToString(hash[:])
	if err := json.Unmarshal(withoutNaN(data), &p.Manifest); err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(path), err)
	}
	p.DType = table.ParseTorch(p.Manifest.ComputeDType)
	p.nameBlockEnds()
	problems := p.Manifest.check()
	if len(problems) == 0 {
		problems = p.rehash()
	}
	if len(problems) > 0 {
		return nil, problem.In(dir, problems...)
	}
	return p, nil
}

// nameBlockEnds gives what the mixtures of a pack of mixtures begin with, and what the norm behind them gives, the names that
// these have in DeepSeek's models and Trinity.
func (p *Pack) nameBlockEnds() {
	b := p.Manifest.Block
	if b == nil {
		return
	}
	p.stages = map[string]string{}
	for _, l := range b.Layers {
		for of, kind := range map[string]string{b.Input: AttentionNorm, "post_feedforward_layernorm.output": behindMLP} {
			stored, name := StageOf(l, of), StageOf(l, kind)
			if e, ok := p.Manifest.Tensors[stored]; ok && stored != name {
				e.storedName, e.storedShape = stored, e.Shape
				delete(p.Manifest.Tensors, stored)
				p.Manifest.Tensors[name] = e
				p.stages[stored] = name
			}
		}
	}
}

// wrap is an error about something in the pack.
func (p *Pack) wrap(what string, err error) error {
	if perr, ok := err.(*fs.PathError); ok {
		err = perr.Err // the path is known
	}
	return fmt.Errorf("%s: %w", text.Quote(p.Dir), fmt.Errorf("%s: %w", text.Quote(what), err))
}

// Fault is an error about a part of the pack, such as a stage; "" is all of it.
func (p *Pack) Fault(part, cause string) error {
	return problem.In(p.Dir, problem.Problem{Field: part, Cause: cause})
}

// Look returns an error if no golden pack is in dir: dir is absent, is not a directory, or has no manifest.json.
func Look(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return problem.System(dir, "", err)
	case !info.IsDir():
		hint := ""
		if filepath.Base(dir) == manifestName {
			hint = "a golden pack is the directory: " + text.Quote(filepath.Dir(dir))
		}
		return problem.New(dir, "not a golden pack: not a directory", hint)
	}
	if _, err := os.Stat(filepath.Join(dir, manifestName)); errors.Is(err, os.ErrNotExist) {
		return problem.New(dir, "not a golden pack: there is no "+manifestName, "")
	}
	return nil
}

// rehash returns the files that are not what the manifest says.
func (p *Pack) rehash() (problems []problem.Problem) {
	add := func(file, cause string, err error) {
		problems = append(problems, problem.Problem{File: file, Cause: cause, Err: err})
	}
	for _, name := range slices.Sorted(maps.Keys(p.Manifest.Files)) {
		got, err := HashFile(filepath.Join(p.Dir, name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			add(name, "missing", err)
		case err != nil:
			problems = append(problems, problem.Of(name, err)...)
		case got != p.Manifest.Files[name]:
			add(name, fmt.Sprintf("is %s, manifest.json says %s", got, text.Quote(p.Manifest.Files[name])), nil)
		}
	}
	return problems
}

// HashFile returns "sha256:" and the hash of a regular file's bytes in hexadecimal.
func HashFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", problem.System(path, "", err)
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", problem.System(path, "", err)
	}
	defer f.Close()
	return Hash(f)
}

// Hash returns "sha256:" and the hash of what r reads in hexadecimal.
func Hash(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// Tensors yields the pack's tensors, in the order of their names.
func (p *Pack) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, name := range slices.Sorted(maps.Keys(p.Manifest.Tensors)) {
			if e := p.Manifest.Tensors[name]; !yield(tensor.Info{Name: name, DType: e.DType, Shape: e.Shape}) {
				return
			}
		}
	}
}

// Has reports whether the pack holds the tensor.
func (p *Pack) Has(name string) bool {
	_, ok := p.Manifest.Tensors[name]
	return ok
}

// Width is the length of the rows of a golden tensor.
func (p *Pack) Width(name string) int {
	shape := p.Manifest.Tensors[name].Shape
	return shape[len(shape)-1]
}

// Tensor reads a golden tensor.
func (p *Pack) Tensor(name string) (t tensor.Tensor, err error) {
	if t, ok := p.Replaced[name]; ok {
		return t, nil
	}
	err = p.pieces(name, 0, math.MaxInt64, math.MaxInt64, func(whole tensor.Tensor) error {
		t = whole
		return nil
	})
	t.Shape = p.Manifest.Tensors[name].Shape
	return t, err
}

// pieces reads the elements from first to last, not included, of a golden tensor and calls f with pieces of at most so
// many bytes, one after the other, as vectors. A piece is valid until f returns, a single one for ever.
func (p *Pack) pieces(name string, first, last, most int64, f func(tensor.Tensor) error) error {
	e, ok := p.Manifest.Tensors[name]
	if !ok {
		return p.Fault("", "there is no tensor "+text.Quote(name))
	}
	at, end := e.DType.Bytes(first), e.DType.Bytes(min(last, int64(e.Elements())))
	data := make([]byte, min(most, end-at))
	read := p.elsewhere[name]
	if read == nil {
		file, from, err := p.open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		read = func(data []byte, at int64) error {
			_, err := file.ReadAt(data, from+at)
			return err
		}
	}
	for ; ; at += int64(len(data)) {
		data = data[:min(int64(len(data)), end-at)]
		if len(data) > 0 {
			if err := read(data, at); err != nil {
				return p.wrap(cmp.Or(e.File, name), err)
			}
		}
		err := f(tensor.Tensor{DType: e.DType, Shape: []int{int(e.DType.Elements(int64(len(data))))}, Data: data})
		if err != nil || at+int64(len(data)) >= end {
			return err
		}
	}
}

// open opens the file of a golden tensor, and returns where its elements begin.
func (p *Pack) open(name string) (file *os.File, from int64, err error) {
	e := p.Manifest.Tensors[name]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file != e.File {
		if err := p.readHeader(e.File); err != nil {
			return nil, 0, p.wrap(e.File, err)
		}
	}
	stored, shape := name, e.Shape
	if e.storedName != "" {
		stored, shape = e.storedName, e.storedShape
	}
	x, ok := p.extents[stored]
	if !ok || x.DType != e.DType || !slices.Equal(x.Shape, shape) {
		return nil, 0, p.Fault(text.Quote(e.File), fmt.Sprintf("%s: file has %s %v, manifest.json says %s %v", text.Quote(name),
			x.DType, x.Shape, e.DType, shape))
	}
	if file, err = os.Open(filepath.Join(p.Dir, e.File)); err != nil {
		return nil, 0, p.wrap(e.File, err)
	}
	return file, p.from + x.from, nil
}

// readHeader reads the header of one file of the pack.
func (p *Pack) readHeader(name string) error {
	most := int64(8 + maxHeader)
	for _, e := range p.Manifest.Tensors {
		if e.File == name {
			size, _ := tensor.Size(e.DType, e.Shape) // check has seen it
			most += size
		}
	}
	file, err := os.Open(filepath.Join(p.Dir, name))
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() > most {
		return errors.New("larger than the tensors that manifest.json puts there")
	}
	extents, from, err := extentsOf(file, info.Size())
	if err != nil {
		return err
	}
	for _, t := range slices.Sorted(maps.Keys(extents)) {
		switch e, listed := p.Manifest.Tensors[cmp.Or(p.stages[t], t)]; {
		case !listed:
			return fmt.Errorf("tensor %.120q is not in manifest.json", t)
		case e.File != name:
			return fmt.Errorf("tensor %.120q: manifest.json says that it is in %s", t, text.Quote(e.File))
		}
	}
	p.file, p.extents, p.from = name, extents, from
	return nil
}

// Float32s returns a golden tensor of floats.
func (p *Pack) Float32s(name string) ([]float32, error) {
	return p.Elements(name, 0, elements(p.Manifest.Tensors[name].Shape))
}

// Elements returns n elements of a golden tensor of floats, from the given one on.
func (p *Pack) Elements(name string, first, n int) ([]float32, error) {
	values := make([]float32, 0, n)
	decode := func(t tensor.Tensor) (err error) {
		if values, err = t.Float32s(values); err != nil {
			return p.wrap(name, err)
		}
		return nil
	}
	if t, ok := p.Replaced[name]; ok {
		err := decode(t)
		return values[first:min(first+n, len(values))], err
	}
	err := p.pieces(name, int64(first), int64(first+n), pieceBytes, decode)
	order := p.Manifest.Tensors[name].order
	if order == nil {
		return values, err
	}
	n, ordered := int(order.Len()), make([]float32, len(values)) // rows, or sequences, in the stage's order
	for i, v := range values {
		ordered[i/n*n+int(order.Element(int64(i%n)))] = v
	}
	return ordered, err
}

// pieceBytes is the size of the pieces in which a golden tensor is read and decoded: it is not in memory twice.
const pieceBytes = 1 << 20

// Ints returns a golden tensor of I64.
func (p *Pack) Ints(name string) ([]int, error) {
	t, err := p.Tensor(name)
	if err != nil {
		return nil, err
	}
	values, err := ints(t)
	if err != nil {
		return nil, p.Fault(text.Quote(name), err.Error())
	}
	return values, nil
}

// references are the kinds of Reference, with whose behaviour a pack of that kind records. Engines follow the rules of the
// checkpoint's family.
var references = map[string]config.Reference{"remote code": config.Remote, "transformers native": config.Native}

// Config returns a checkpoint's config as the pack's reference ran with it: with the pack's config_overrides, and the
// rules of the reference, unless override names another, as the manifest changes them. It refuses an override of a key
// that neither the family nor the checkpoint's config.json has: a typo would change nothing.
func (p *Pack) Config(c *config.Config, override config.Reference) (*config.Config, error) {
	if len(p.Manifest.ConfigOverrides) > 0 {
		for _, key := range slices.Sorted(maps.Keys(p.Manifest.ConfigOverrides)) {
			if !c.HasKey(key) {
				return nil, p.Fault(manifestName, fmt.Sprintf("config_overrides: %.80q is not a key of model_type %s, nor of config.json",
					key, c.ModelType))
			}
		}
		var err error
		if c, err = c.Override(p.Manifest.ConfigOverrides); err != nil {
			return nil, p.wrap("config_overrides", err)
		}
	}
	c, err := c.As(cmp.Or(override, references[p.Manifest.Reference.Kind], c.Reference))
	if err != nil {
		return nil, p.Fault("", err.Error())
	}
	c = c.WithRules(p.follow)
	if scaled, err := p.scalesWeights(c); err != nil || !scaled {
		return c, err
	}
	return c.WithRules(func(r *config.Rules) { r.MoE.ScalesSum = false }), nil
}

// scalesWeights reports whether an engine has multiplied top-k weights with the factor of the routed sum, which is the same
// product: half of the rows of a layer add up to the factor, within what a 16-bit dtype rounds.
func (p *Pack) scalesWeights(c *config.Config) (bool, error) {
	scale := c.SumScale()
	normalised, _ := c.TopKWeights()
	if !p.IsTrace() || scale == 1 || !normalised {
		return false, nil
	}
	for l := range c.NumHiddenLayers {
		name := StageOf(l, TopKWeight)
		if !p.Has(name) {
			continue
		}
		weights, err := p.Float32s(name)
		if err != nil {
			return false, err
		}
		scaled, rows := 0, slices.Collect(slices.Chunk(weights, c.MoE.NumExpertsPerTok))
		for _, row := range rows {
			var sum float64
			for _, w := range row {
				sum += float64(w)
			}
			if off := math.Abs(sum - scale); off < 0.01*scale && off < math.Abs(sum-1) {
				scaled++
			}
		}
		return 2*scaled > len(rows), nil
	}
	return false, nil
}

// follow gives r what the manifest says of how the reference ran.
func (p *Pack) follow(r *config.Rules) {
	m := &p.Manifest
	if slices.Contains([]string{GroupedMM, BatchedMM}, m.Reference.Experts) {
		r.MoE.RoutedSum = config.ByChoice
	}
	major, minor := 0, 0
	fmt.Sscanf(m.Reference.Transformers, "%d.%d", &major, &minor)
	if 100*major+minor >= 524 && m.Block == nil && references[m.Reference.Kind] == config.Native &&
		r.Router.RouterFloat32 && !r.NormsOnce {
		r.Router.KeepsGate = true // classes keep it since 5.24, but for DeepSeek-V4's
	}
	if kept := m.KeptFloat32; kept != nil { // models have the bias in modules of several names
		r.Router.KeepsGate = slices.Contains(kept, "mlp.gate.weight")
		r.Router.CastsRouterBias = !slices.ContainsFunc(kept, func(kind string) bool {
			return strings.HasSuffix(kind, string(table.EScoreCorrectionBias))
		})
	}
}

// Input returns input_ids and attention_mask.
func (p *Pack) Input() (*model.Input, error) {
	ids, err := p.Ints(inputIDs)
	if err != nil {
		return nil, err
	}
	var mask []int
	if p.Has(attentionMask) {
		if mask, err = p.Ints(attentionMask); err != nil {
			return nil, err
		}
	}
	in, err := newInput(ids, p.Manifest.Tensors[inputIDs].Shape, mask, p.Manifest.Tensors[attentionMask].Shape)
	if err == nil && len(ids) == 0 {
		err = errNoToken
	}
	if err != nil {
		return nil, p.Fault("", err.Error())
	}
	if problems := p.Manifest.checkSteps(in); problems != nil {
		return nil, problem.In(p.Dir, problems...)
	}
	return in, nil
}

// First returns the pack of the first n tokens of each sequence: its inputs, RoPE's tables, and the stages that keep
// selects and whose rows are tokens. It has no stages of single experts, no attention probabilities, and no tensors whose
// columns the file has in another order.
func (p *Pack) First(c *config.Config, n int, keep func(Stage) bool) (*Pack, error) {
	ids := p.Manifest.Tensors[inputIDs].Shape
	batch, seq := elements(ids[:len(ids)-1]), ids[len(ids)-1]
	cut := &Pack{Dir: p.Dir, Manifest: p.Manifest, Hash: p.Hash, DType: p.DType, Replaced: map[string]tensor.Tensor{}}
	cut.Manifest.Tensors, cut.Manifest.Steps = map[string]Entry{}, nil
	for name, e := range p.Manifest.Tensors {
		s := Parse(name)
		axis := s.tokenAxis(c, len(e.Shape))
		switch {
		case s.IsTable():
			axis = len(e.Shape) - 2
		case s.IsInput():
			axis = len(e.Shape) - 1
		case s.Expert >= 0 || s.Within == AttnWeights || !keep(s):
			continue
		}
		if axis < 0 || e.order != nil {
			continue
		}
		shape := slices.Clone(e.Shape)
		sequences := elements(shape[:axis])
		if axis == 0 && !s.IsTable() && !s.IsInput() { // the tokens of a batch in one axis
			sequences = batch
		}
		if elements(shape[:axis+1]) != sequences*seq {
			continue
		}
		whole, err := p.Tensor(name)
		if err != nil {
			return nil, err
		}
		shape[axis] = shape[axis] / seq * n
		first := tensor.Tensor{DType: e.DType, Shape: shape}
		each := len(whole.Data) / sequences
		for i := range sequences {
			first.Data = append(first.Data, whole.Data[i*each:i*each+each/seq*n]...)
		}
		cut.Manifest.Tensors[name], cut.Replaced[name] = Entry{DType: e.DType, Shape: shape}, first
	}
	return cut, nil
}

// MayLack reports whether the manifest of a partial pack names a stage as absent. An engine's trace may lack any.
func (p *Pack) MayLack(name string) bool {
	return p.IsTrace() || p.Manifest.Partial != "" && slices.Contains(p.Manifest.Absent.Stages, Parse(name).Kind)
}

// HasStageGradients reports whether the pack has what a backward pass a layer at a time begins with: the gradients of
// the outputs of that many layers. Without them gradients are judged end to end.
func (p *Pack) HasStageGradients(layers int) bool {
	for l := range layers {
		if !p.Has(StageOf(l, LayerOutput) + Grad) {
			return false
		}
	}
	return true
}
