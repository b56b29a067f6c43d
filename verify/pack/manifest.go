package pack

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// Manifest is a golden pack's manifest.json: which reference ran, how, on what, and
// where each tensor is.
type Manifest struct {
	Format          string                    `json:"format"`           // "golden/1"
	Reference       Reference                 `json:"reference"`        // the Python, or the engine, that ran
	Arithmetic      *Arithmetic               `json:"arithmetic"`       // of an engine, as it declares it
	Mode            string                    `json:"mode"`             // "eval" or "train"
	ComputeDType    string                    `json:"compute_dtype"`    // as torch spells it
	ConfigOverrides map[string]jsontext.Value `json:"config_overrides"` // keys of config.json that the reference ran with
	// config.json of the checkpoint; nil in packs of before it was recorded
	Config     jsontext.Value    `json:"config"`
	Checkpoint map[string]string `json:"checkpoint"` // file -> "sha256:…"
	Weights    string            `json:"weights"`    // describes weights that are in no file
	// why the pack proves less on purpose; empty if it does not
	Partial string `json:"partial"`
	Absent  Absent `json:"absent"` // what was left out on purpose
	// by the layer's number: of those whose input is in the pack
	LayerInputs map[string]LayerInput `json:"layer_inputs"`
	// Noise is how far another order of sums moved a gradient, by its name; of other stages it is
	// for people.
	Noise  map[string]Noise `json:"noise"`
	Probes map[string]Probe `json:"probes"` // by the layer's number: of experts that no token chose
	// KeptFloat32 are the kinds of weights that the reference kept in float32 beside a narrower compute dtype, such as
	// "mlp.gate.weight"; nil if the manifest does not say.
	KeptFloat32 []string          `json:"kept_float32"`
	MadeBy      string            `json:"made_by"` // how the model got its dtype: "from_pretrained(…)", "model.to(dtype)"
	Files       map[string]string `json:"files"`   // file -> "sha256:…"
	Tensors     map[string]Entry  `json:"tensors"` // by name: HuggingFace's module and what it gave
	// Block says what the mixtures of a pack of mixtures of experts alone begin with; nil of others.
	Block *struct {
		Layers []int  `json:"layers"` // of the model
		Input  string `json:"input"`  // kind of stage, whatever the module is called: see AttentionNorm
	} `json:"block"`
	// Steps are the steps of an engine that computed the rows of its trace; nil if the manifest does not say.
	Steps []Step `json:"steps"`
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

// Probe says, in a manifest, what experts of a layer were run on beside what its gate gave them.
type Probe struct {
	Rows    []int `json:"rows"`    // of post_attention_layernorm.output as [tokens, hidden_size], ascending
	Experts []int `json:"experts"` // ascending; each has a stage mlp.experts.E.probe.output [rows, hidden_size]
}

// The kinds of LayerInput.
const (
	Recorded = "recorded" // what the part of the model before the layer gave
	Seeded   = "seeded"   // random numbers: the part before did not run
)

// RotaryDType is the dtype in which the reference kept RoPE's inv_freq: from_pretrained leaves
// it in float32, as engines do; model.to(dtype) casts it. Invalid is the compute dtype.
func (m *Manifest) RotaryDType() tensor.DType {
	if m.Reference.Kind == Engine || strings.HasPrefix(m.MadeBy, "from_pretrained") {
		return tensor.F32
	}
	return tensor.Invalid
}

// Reference says which Python made the pack.
type Reference struct {
	Name     string `json:"name,omitempty"`     // of an engine, such as llama.cpp
	Version  string `json:"version,omitempty"`  // of an engine
	Recorded string `json:"recorded,omitempty"` // how an engine's numbers were seen, for people

	Model        string `json:"model"`        // class, such as DeepseekForCausalLM
	Kind         string `json:"kind"`         // "remote code", "transformers native" for its own classes, or "engine"
	File         string `json:"file"`         // that defines the class
	Transformers string `json:"transformers"` // version
	Torch        string `json:"torch"`        // version
	Device       string `json:"device"`       // as torch spells it
	Threads      int    `json:"threads"`      // of torch
	// Attention is how transformers computes attention: "" or eager, sdpa, or one whose
	// rounding errors are not known here.
	Attention string `json:"attn_implementation,omitzero"`
	// Experts is how transformers computes routed experts: "" or eager, grouped_mm, batched_mm, or one whose
	// rounding errors are not known here.
	Experts  string            `json:"experts_implementation,omitzero"`
	Compiled bool              `json:"compiled,omitzero"`  // torch.compile compiled code that ran
	Replaced map[string]string `json:"replaced,omitempty"` // classes and functions -> module whose code ran instead

	GPU string `json:"gpu,omitempty"` // its name; empty on a CPU

	Precision *Precision `json:"precision,omitempty"` // what torch's products were set to; nil if not said
}

// Precision is what torch was set to in products on a GPU; on a CPU Float32 alone has an effect.
type Precision struct {
	MatmulTF32      bool   `json:"matmul_tf32"`              // float32 operands are rounded to 10 bits of mantissa
	CuDNNTF32       bool   `json:"cudnn_tf32"`               // the same in convolutions, of which these models have none
	ReducedBF16Sums bool   `json:"reduced_bf16_sums"`        // partial sums of BF16 products may be kept in BF16
	ReducedFP16Sums bool   `json:"reduced_fp16_sums"`        // likewise in F16
	Float32         string `json:"float32_matmul_precision"` // highest, high or medium
}

// String prints the settings in torch's words.
func (p *Precision) String() string {
	return fmt.Sprintf("matmul_tf32 %t, cudnn_tf32 %t, reduced_bf16_sums %t, reduced_fp16_sums %t, "+
		"float32_matmul_precision %s",
		p.MatmulTF32, p.CuDNNTF32, p.ReducedBF16Sums, p.ReducedFP16Sums, p.Float32)
}

// String names the engine, or the class and its libraries, and the device, as far as the manifest does.
func (r *Reference) String() string {
	if r.Kind == Engine {
		engine := fmt.Sprintf("%s, %s", r.Name, r.Version)
		if r.Device != "" {
			engine += " on " + r.Device
		}
		if r.Recorded != "" {
			engine += "; recorded by " + r.Recorded
		}
		return engine
	}
	python := strings.TrimSpace(fmt.Sprintf("%s (%s)", r.Model, strings.TrimSpace(r.Kind+" "+r.File)))
	for _, part := range [][2]string{{", transformers ", r.Transformers}, {", torch ", r.Torch}, {" on ", r.Device}} {
		if part[1] != "" {
			python += part[0] + part[1]
		}
	}
	return python
}

// MatmulPrecision returns how precise float32 products were, as torch.set_float32_matmul_precision has it: highest,
// high or medium; "" if the manifest does not say.
func (r *Reference) MatmulPrecision() string {
	if r.Precision == nil {
		return ""
	}
	return r.Precision.Float32
}

// OnGPU reports whether the reference, or the engine, ran on a GPU.
func (r *Reference) OnGPU() bool { return r.GPU != "" || strings.HasPrefix(r.Device, "cuda") }

// TF32 reports whether the GPU may have rounded the operands of float32 products to TF32, of 10 bits of mantissa.
func (r *Reference) TF32() bool { return r.OnGPU() && r.Precision != nil && r.Precision.MatmulTF32 }

// DeviceText names the GPU that the reference ran on, and its settings; for a CPU float32 products of less than the
// highest precision. It is empty if there is nothing to say.
func (r *Reference) DeviceText() string {
	switch {
	case r.Precision == nil:
		return r.GPU
	case r.Device == "cpu" && slices.Contains([]string{"", "highest"}, r.Precision.Float32):
		return ""
	case r.Device == "cpu":
		return "float32_matmul_precision " + r.Precision.Float32
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

	storedName  string       // its name in the file, if another one: see Spell
	storedShape []int        // its shape there, if it has another name
	order       *tensor.View // of the columns there, or of all elements of a sequence; nil: as they are
}

// Elements is the number of elements of the tensor.
func (e *Entry) Elements() int { return elements(e.Shape) }

// elements is the number of elements of a tensor of a shape.
func elements(shape []int) int {
	n := 1
	for _, dim := range shape {
		n *= dim
	}
	return n
}

// withoutNaN returns a JSON text in which the literals NaN, Infinity and -Infinity are null.
// Python's json module writes them, and JSON has none.
func withoutNaN(data []byte) []byte {
	if !bytes.Contains(data, []byte("NaN")) && !bytes.Contains(data, []byte("Infinity")) {
		return data
	}
	literal := regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?Infinity|NaN`)
	return literal.ReplaceAllFunc(data, func(found []byte) []byte {
		if found[0] == '"' {
			return found
		}
		return []byte("null")
	})
}

// check returns what is wrong with the manifest itself.
func (m *Manifest) check() (problems []problem.Problem) {
	add := func(cause string, args ...any) {
		problems = append(problems, problem.Problem{File: manifestName, Cause: fmt.Sprintf(cause, args...)})
	}
	if _, known := references[m.Reference.Kind]; !known && m.Reference.Kind != Engine {
		add("reference: kind %.40q, not \"remote code\", \"transformers native\" or \"engine\": whose rules the pack "+
			"follows is not known", m.Reference.Kind)
	}
	m.checkEngine(add)
	if m.Format != "golden/1" {
		add("format %.40q, not \"golden/1\"", m.Format)
	}
	if m.Mode != "eval" && m.Mode != "train" {
		add("mode %.40q, not \"eval\" or \"train\"", m.Mode)
	}
	if m.Mode == "train" && m.ComputeDType != "float32" {
		add("a training pack in %.40q: gradients are compared in float32 only", m.ComputeDType)
	}
	if d := table.ParseTorch(m.ComputeDType); !d.Casts() {
		add("compute_dtype %.40q, not float32, bfloat16 or float16", m.ComputeDType)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		if name != filepath.Base(name) || !strings.HasSuffix(name, ".safetensors") {
			add("files: %.80q is not the name of a safetensors file in the pack", name)
		}
	}
	m.checkLayers(add)
	m.checkProbes(add)
	used := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(m.Tensors)) {
		e := m.Tensors[name]
		used[e.File] = true
		if _, ok := m.Files[e.File]; !ok {
			add("tensors: %.120q: file %.80q is not among the pack's files", name, e.File)
		}
		if _, err := tensor.Size(e.DType, e.Shape); err != nil || len(e.Shape) == 0 {
			add("tensors: %.120q: shape %v", name, e.Shape)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		if !used[name] {
			add("files: %.80q holds no tensor of the manifest", name)
		}
	}
	return problems
}

// checkLayers adds what is wrong with the manifest's absent layers and layer inputs.
func (m *Manifest) checkLayers(add func(cause string, args ...any)) {
	for _, l := range m.Absent.Layers {
		if l < 0 {
			add("absent: layer %d is none", l)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Tensors)) {
		s := Parse(name)
		if _, described := m.LayerInputs[strconv.Itoa(s.Layer)]; s.Within == OwnInputKind && !described {
			add("tensors: %.120q: layer_inputs does not say where it is from", name)
		}
		if slices.Contains(m.Absent.Layers, s.Layer) {
			add("tensors: %.120q: its layer is said to be absent", name)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(m.LayerInputs)) {
		in := m.LayerInputs[number]
		l, err := strconv.Atoi(number)
		if err != nil || l < 0 || strconv.Itoa(l) != number {
			add("layer_inputs: %.40q is not the number of a layer", number)
			continue
		}
		if _, there := m.Tensors[OwnInput(l)]; !there {
			add("layer_inputs: layer %d: there is no tensor %s", l, OwnInput(l))
		}
		switch {
		case in.Kind != Recorded && in.Kind != Seeded:
			add("layer_inputs: layer %d: kind %.40q, not \"recorded\" or \"seeded\"", l, in.Kind)
		case in.Kind == Recorded && in.Is != InputStage(l):
			add("layer_inputs: layer %d: recorded as %.120q, but it begins with %s", l, in.Is, InputStage(l))
		}
	}
}

// checkProbes adds what is wrong with the manifest's probes by itself.
func (m *Manifest) checkProbes(add func(cause string, args ...any)) {
	if m.Mode == "train" && len(m.Probes) > 0 {
		add("probes: a training pack has none")
	}
	for _, number := range slices.Sorted(maps.Keys(m.Probes)) {
		l, err := strconv.Atoi(number)
		if err != nil || l < 0 || strconv.Itoa(l) != number {
			add("probes: %.40q is not the number of a layer", number)
			continue
		}
		for _, cause := range m.checkProbe(l, m.Probes[number]) {
			add("probes: layer %d: %s", l, cause)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Tensors)) {
		if s := Parse(name); s.IsProbe() && !slices.Contains(m.Probes[strconv.Itoa(s.Layer)].Experts, s.Expert) {
			add("tensors: %.120q: probes does not say which rows it is of", name)
		}
	}
}

// checkProbe returns what is wrong with the probes of layer l: their rows, experts or tensors.
func (m *Manifest) checkProbe(l int, p Probe) (problems []string) {
	normed := StageOf(l, AttentionNorm)
	of, there := m.Tensors[normed]
	if !there || len(of.Shape) == 0 {
		return []string{"there is no tensor " + normed + ", whose rows the experts were run on"}
	}
	width := of.Shape[len(of.Shape)-1]
	if latent := m.Tensors[StageOf(l, latentInput)].Shape; len(latent) > 0 {
		width = latent[len(latent)-1]
	}
	if problem := ascending("row", p.Rows, elements(of.Shape[:len(of.Shape)-1])); problem != "" {
		problems = append(problems, problem)
	}
	if problem := ascending("expert", p.Experts, -1); problem != "" {
		return append(problems, problem)
	}
	for _, e := range p.Experts {
		name := ProbeStage(l, e)
		t, there := m.Tensors[name]
		switch want := []int{len(p.Rows), width}; {
		case !there:
			problems = append(problems, "there is no tensor "+name)
		case !slices.Equal(t.Shape, want) || t.DType != of.DType:
			problems = append(problems, fmt.Sprintf("%s is %s %v, not %s %v", name, t.DType, t.Shape, of.DType, want))
		}
	}
	return problems
}

// ascending returns why a list does not hold different numbers below end in ascending order. A negative end
// is no limit.
func ascending(what string, list []int, end int) string {
	if len(list) == 0 {
		return "no " + what + " is named"
	}
	for i, n := range list {
		switch {
		case n < 0:
			return fmt.Sprintf("%s %d is below 0", what, n)
		case end >= 0 && n >= end:
			return fmt.Sprintf("%s %d is not one of %d", what, n, end)
		case i > 0 && n <= list[i-1]:
			return fmt.Sprintf("%s %d follows %d: they are not ascending", what, n, list[i-1])
		}
	}
	return ""
}

// ProbesByLayer is the manifest's probes by the number of the layer.
func (m *Manifest) ProbesByLayer() map[int]Probe {
	probes := map[int]Probe{}
	for number, p := range m.Probes {
		l, _ := strconv.Atoi(number) // OpenPack has checked it
		probes[l] = p
	}
	return probes
}

// Misfit returns why a golden tensor cannot be compared at all; empty if it can. Axes of length 1 do not
// count: hooks see them where a reference reshapes on the way.
func Misfit(e Entry, shape []int, d tensor.DType) string {
	one := func(n int) bool { return n == 1 }
	switch {
	case !slices.Equal(slices.DeleteFunc(slices.Clone(e.Shape), one), slices.DeleteFunc(slices.Clone(shape), one)):
		return fmt.Sprintf("shape: golden %v, model %v", e.Shape, shape)
	case e.DType != d:
		return fmt.Sprintf("dtype: golden %s, computed in %s", e.DType, d)
	}
	return ""
}
