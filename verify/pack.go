package verify

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nlpodyssey/safetensors"

	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Manifest is a golden pack's manifest.json: which reference ran, how, on what, and
// where each tensor is.
type Manifest struct {
	Format          string                    `json:"format"`           // "golden/1"
	Reference       Reference                 `json:"reference"`        // the Python that ran
	Mode            string                    `json:"mode"`             // "eval" or "train"
	ComputeDType    string                    `json:"compute_dtype"`    // as torch spells it
	ConfigOverrides map[string]jsontext.Value `json:"config_overrides"` // keys of config.json that the reference ran with
	Config          jsontext.Value            `json:"config"`           // config.json of the checkpoint; nil in packs of before it was recorded
	Checkpoint      map[string]string         `json:"checkpoint"`       // file -> "sha256:…"
	Weights         string                    `json:"weights"`          // said of them where there are no files
	Partial         string                    `json:"partial"`          // why the pack proves less on purpose; empty if it does not
	Absent          Absent                    `json:"absent"`           // what was left out on purpose
	LayerInputs     map[string]LayerInput     `json:"layer_inputs"`     // by the layer's number: of those whose input is in the pack
	// Noise is how far another order of sums moved a gradient, by its name; of other stages it is
	// for people.
	Noise   map[string]Noise  `json:"noise"`
	Probes  map[string]Probe  `json:"probes"`  // by the layer's number: of experts that no token chose
	MadeBy  string            `json:"made_by"` // how the model got its dtype: "from_pretrained(…)", or "model.to(dtype)"
	Files   map[string]string `json:"files"`   // file -> "sha256:…"
	Tensors map[string]Entry  `json:"tensors"` // by name: HuggingFace's module and what it gave
}

// Absent is what a pack leaves out on purpose.
type Absent struct {
	Layers []int    `json:"layers,omitempty"` // of the model
	Stages []string `json:"stages,omitempty"` // kinds that it has in no layer, such as "mlp.experts.output"
}

// LayerInput says where the tensor model.layers.N.input of a pack is from.
type LayerInput struct {
	Kind   string         `json:"kind"`             // Recorded or Seeded
	Is     string         `json:"is,omitempty"`     // recorded: the stage that it is, which is not in the pack
	Seed   jsontext.Value `json:"seed,omitempty"`   // seeded: of the random numbers
	Values string         `json:"values,omitempty"` // seeded: how they were drawn
}

// Noise is the difference of two runs of the reference.
type Noise struct {
	MaxAbs float64 `json:"max_abs"` // the largest of an element
	RelRMS float64 `json:"rel_rms"` // RMS over that of the tensor
}

// The kinds of LayerInput.
const (
	Recorded = "recorded" // what the part of the model before the layer gave
	Seeded   = "seeded"   // random numbers: the part before did not run
)

// rotaryDType is the dtype in which the reference kept RoPE's inv_freq: from_pretrained leaves
// it in float32, model.to(dtype) casts it. Invalid is the compute dtype.
func (m *Manifest) rotaryDType() tensor.DType {
	if strings.HasPrefix(m.MadeBy, "from_pretrained") {
		return tensor.F32
	}
	return tensor.Invalid
}

// Reference says which Python made the pack.
type Reference struct {
	Model        string `json:"model"`        // class, such as DeepseekForCausalLM
	Kind         string `json:"kind"`         // "remote code", or "transformers …" for its own classes
	File         string `json:"file"`         // that defines the class
	Transformers string `json:"transformers"` // version
	Torch        string `json:"torch"`        // version
	Device       string `json:"device"`       // as torch spells it
	Threads      int    `json:"threads"`      // of torch
	// Attention is how transformers computes attention: "" or eager, sdpa, or one whose
	// rounding errors are not known here.
	Attention string `json:"attn_implementation,omitzero"`
	GPU       string `json:"gpu,omitempty"` // its name; empty on a CPU

	Precision *Precision `json:"precision,omitempty"` // what torch was set to on the GPU; nil if the manifest does not say
}

// Precision is what torch was set to in products on a GPU.
type Precision struct {
	MatmulTF32      bool   `json:"matmul_tf32"`              // float32 operands are rounded to 10 bits of mantissa
	CuDNNTF32       bool   `json:"cudnn_tf32"`               // the same in convolutions, of which these models have none
	ReducedBF16Sums bool   `json:"reduced_bf16_sums"`        // partial sums of BF16 products may be kept in BF16
	ReducedFP16Sums bool   `json:"reduced_fp16_sums"`        // likewise in F16
	Float32         string `json:"float32_matmul_precision"` // highest, high or medium
}

// String says it in torch's words.
func (p *Precision) String() string {
	return fmt.Sprintf("matmul_tf32 %t, cudnn_tf32 %t, reduced_bf16_sums %t, reduced_fp16_sums %t, float32_matmul_precision %s",
		p.MatmulTF32, p.CuDNNTF32, p.ReducedBF16Sums, p.ReducedFP16Sums, p.Float32)
}

// ranOn says on which GPU the reference ran, with what settings; "" without any.
func (r *Reference) ranOn() string {
	switch {
	case r.Precision == nil:
		return r.GPU
	case r.GPU == "":
		return r.Precision.String()
	}
	return r.GPU + ": " + r.Precision.String()
}

// Entry is where a golden tensor is and what it holds.
type Entry struct {
	File  string       `json:"file"`  // a key of Manifest.Files
	DType tensor.DType `json:"dtype"` // of its elements
	Shape []int        `json:"shape"` // in numbers of elements
}

// elements is the number of elements of the tensor.
func (e *Entry) elements() int {
	n := 1
	for _, dim := range e.Shape {
		n *= dim
	}
	return n
}

// Pack is an opened golden pack.
type Pack struct {
	Dir      string       // as OpenPack was given it
	Manifest Manifest     // what manifest.json says
	Hash     string       // of manifest.json: "sha256:…"
	DType    tensor.DType // the reference's compute dtype

	mu     sync.Mutex
	file   string // whose tensors are held
	loaded map[string]tensor.Tensor
}

// The largest manifest and the largest safetensors header that a pack may have.
const (
	maxManifest = 16 << 20
	maxHeader   = 16 << 20
)

// OpenPack reads the manifest of the golden pack in dir, checks it, and re-hashes
// every file it lists. All problems are in one error.
func OpenPack(dir string) (*Pack, error) {
	p := &Pack{Dir: dir}
	if err := p.readManifest(); err != nil {
		return nil, err
	}
	p.DType = table.ParseTorch(p.Manifest.ComputeDType)
	problems := p.Manifest.check()
	if len(problems) == 0 {
		problems = p.rehash()
	}
	if len(problems) > 0 {
		return nil, &PackError{dir, problems}
	}
	return p, nil
}

// PackError is all that is wrong with a pack.
type PackError struct {
	Dir      string  // of the pack
	Problems []error // at least one: "file: cause"
}

// Error names at most 20 problems, on one line.
func (e *PackError) Error() string {
	const most = 20
	var texts []string
	for _, problem := range e.Problems[:min(most, len(e.Problems))] {
		texts = append(texts, problem.Error())
	}
	if n := len(e.Problems) - most; n > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", n))
	}
	return text.Quote(e.Dir) + ": " + strings.Join(texts, "; ")
}

// Unwrap returns the problems, which keep their causes.
func (e *PackError) Unwrap() []error { return e.Problems }

// wrap is an error about something in the pack.
func (p *Pack) wrap(what string, err error) error {
	return fmt.Errorf("%s: %w", text.Quote(p.Dir), fmt.Errorf("%s: %w", text.Quote(what), err))
}

// fault is an error about the pack.
func (p *Pack) fault(problem string) error { return &PackError{p.Dir, []error{errors.New(problem)}} }

func (p *Pack) readManifest() error {
	path := filepath.Join(p.Dir, "manifest.json")
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s: %w", text.Quote(p.Dir), errors.New("not a golden pack: there is no manifest.json"))
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Size() > maxManifest:
		return fmt.Errorf("%s: %w", text.Quote(path), fmt.Errorf("not a regular file of at most %s", text.Bytes(maxManifest)))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	hash := sha256.Sum256(data)
	p.Hash = "sha256:" + hex.EncodeToString(hash[:])
	if err := json.Unmarshal(nulled(data), &p.Manifest); err != nil {
		return fmt.Errorf("%s: %w", text.Quote(path), err)
	}
	return nil
}

// nulled returns a JSON text in which the literals NaN, Infinity and -Infinity are null.
// Python's json module writes them, and JSON has none.
func nulled(data []byte) []byte {
	literal := regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?Infinity|NaN`)
	return literal.ReplaceAllFunc(data, func(found []byte) []byte {
		if found[0] == '"' {
			return found
		}
		return []byte("null")
	})
}

// check returns what is wrong with the manifest itself.
func (m *Manifest) check() []error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if m.Reference.Kind == "" {
		add("manifest.json: no reference, or none with a kind: whose rules the pack follows is not known")
	}
	if m.Format != "golden/1" {
		add("manifest.json: format %.40q, not \"golden/1\"", m.Format)
	}
	if m.Mode != "eval" && m.Mode != "train" {
		add("manifest.json: mode %.40q, not \"eval\" or \"train\"", m.Mode)
	}
	if m.Mode == "train" && m.ComputeDType != "float32" {
		add("manifest.json: a training pack in %.40q: gradients are compared in float32 only", m.ComputeDType)
	}
	if d := table.ParseTorch(m.ComputeDType); !d.Casts() {
		add("manifest.json: compute_dtype %.40q, not float32, bfloat16 or float16", m.ComputeDType)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		if name != filepath.Base(name) || !strings.HasSuffix(name, ".safetensors") {
			add("manifest.json: files: %.80q is not the name of a safetensors file in the pack", name)
		}
	}
	problems = append(problems, m.checkLayers()...)
	problems = append(problems, m.checkProbes()...)
	used := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(m.Tensors)) {
		e := m.Tensors[name]
		used[e.File] = true
		if _, ok := m.Files[e.File]; !ok {
			add("manifest.json: tensors: %.120q: file %.80q is not among the pack's files", name, e.File)
		}
		if _, err := tensor.Size(e.DType, e.Shape); err != nil || len(e.Shape) == 0 {
			add("manifest.json: tensors: %.120q: shape %v", name, e.Shape)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		if !used[name] {
			add("manifest.json: files: %.80q holds no tensor of the manifest", name)
		}
	}
	return problems
}

// checkLayers returns what is wrong with what the manifest says of layers: of those that are
// absent, and of what layers begin with.
func (m *Manifest) checkLayers() (problems []error) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, l := range m.Absent.Layers {
		if l < 0 {
			add("manifest.json: absent: layer %d is none", l)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Tensors)) {
		layer, kind := split(name)
		if _, told := m.LayerInputs[strconv.Itoa(layer)]; kind == layerInput && !told {
			add("manifest.json: tensors: %.120q: layer_inputs does not say where it is from", name)
		}
		if slices.Contains(m.Absent.Layers, layer) {
			add("manifest.json: tensors: %.120q: its layer is said to be absent", name)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(m.LayerInputs)) {
		in := m.LayerInputs[number]
		l, err := strconv.Atoi(number)
		if err != nil || l < 0 || strconv.Itoa(l) != number {
			add("manifest.json: layer_inputs: %.40q is not the number of a layer", number)
			continue
		}
		if _, there := m.Tensors[inputOf(l)]; !there {
			add("manifest.json: layer_inputs: layer %d: there is no tensor %s", l, inputOf(l))
		}
		switch {
		case in.Kind != Recorded && in.Kind != Seeded:
			add("manifest.json: layer_inputs: layer %d: kind %.40q, not \"recorded\" or \"seeded\"", l, in.Kind)
		case in.Kind == Recorded && in.Is != before(l):
			add("manifest.json: layer_inputs: layer %d: recorded as %.120q, but it begins with %s", l, in.Is, before(l))
		}
	}
	return problems
}

// rehash returns the files that are not what the manifest says.
func (p *Pack) rehash() []error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(p.Manifest.Files)) {
		got, err := HashFile(filepath.Join(p.Dir, name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			problems = append(problems, &missingFile{name, err})
		case err != nil:
			add("%s: %w", text.Quote(name), err)
		case got != p.Manifest.Files[name]:
			add("%s: is %s, manifest.json says %s", text.Quote(name), got, text.Quote(p.Manifest.Files[name]))
		}
	}
	return problems
}

// missingFile is a file of a pack that is not there.
type missingFile struct {
	name string
	err  error
}

// Error names the file.
func (e *missingFile) Error() string { return text.Quote(e.name) + ": missing" }

// Unwrap returns what the system said.
func (e *missingFile) Unwrap() error { return e.err }

// HashFile returns "sha256:" and the hash of a regular file's bytes in hexadecimal.
func HashFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
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

// Has says whether the pack holds the tensor.
func (p *Pack) Has(name string) bool {
	_, ok := p.Manifest.Tensors[name]
	return ok
}

// Tensor reads a golden tensor. The file that holds it stays in memory until a
// tensor of another file is asked for.
func (p *Pack) Tensor(name string) (tensor.Tensor, error) {
	e, ok := p.Manifest.Tensors[name]
	if !ok {
		return tensor.Tensor{}, p.fault("there is no tensor " + text.Quote(name))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file != e.File {
		loaded, err := p.load(e.File)
		if err != nil {
			return tensor.Tensor{}, p.wrap(e.File, err)
		}
		p.file, p.loaded = e.File, loaded
	}
	t, ok := p.loaded[name]
	if !ok || t.DType != e.DType || !slices.Equal(t.Shape, e.Shape) {
		return tensor.Tensor{}, p.fault(fmt.Sprintf("%s: %s: file has %s %v, manifest.json says %s %v", text.Quote(e.File), text.Quote(name), t.DType, t.Shape, e.DType, e.Shape))
	}
	return t, nil
}

// load reads one file of the pack whole: it holds one layer's activations.
func (p *Pack) load(name string) (map[string]tensor.Tensor, error) {
	path := filepath.Join(p.Dir, name)
	most := int64(8 + maxHeader)
	for _, e := range p.Manifest.Tensors {
		if e.File == name {
			size, _ := tensor.Size(e.DType, e.Shape) // check has seen it
			most += size
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > most {
		return nil, errors.New("larger than the tensors that manifest.json puts there")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	tensors, err := parse(data)
	for t := range tensors {
		if p.Manifest.Tensors[t].File != name {
			return nil, fmt.Errorf("tensor %.120q is not in manifest.json", t)
		}
	}
	return tensors, err
}

// parse returns the tensors of a safetensors file.
func parse(data []byte) (map[string]tensor.Tensor, error) {
	if len(data) < 8 || binary.LittleEndian.Uint64(data) > maxHeader {
		return nil, fmt.Errorf("not a safetensors file with a header of at most %s", text.Bytes(maxHeader))
	}
	parsed, err := safetensors.Deserialize(data)
	if err != nil {
		return nil, err
	}
	tensors := map[string]tensor.Tensor{}
	for _, t := range parsed.Tensors() {
		dtype, err := tensor.ParseDType(t.TensorView.DType().String())
		if err != nil {
			return nil, err
		}
		shape := make([]int, len(t.TensorView.Shape()))
		for i, d := range t.TensorView.Shape() {
			shape[i] = int(d)
		}
		tensors[t.Name] = tensor.Tensor{DType: dtype, Shape: shape, Data: t.TensorView.Data()}
	}
	return tensors, nil
}

// Float32s returns a golden tensor of floats.
func (p *Pack) Float32s(name string) ([]float32, error) {
	t, err := p.Tensor(name)
	if err != nil {
		return nil, err
	}
	values, err := t.Float32s(nil)
	if err != nil {
		return nil, p.wrap(name, err)
	}
	return values, nil
}

// Ints returns a golden tensor of I64.
func (p *Pack) Ints(name string) ([]int, error) {
	t, err := p.Tensor(name)
	if err != nil {
		return nil, err
	}
	values, err := ints(t)
	if err != nil {
		return nil, p.fault(fmt.Sprintf("%s: %v", text.Quote(name), err))
	}
	return values, nil
}
