package pack

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Traces: packs of what an engine computed.

// Engine is the kind of Reference of a trace: what an engine computed, by the rules of the checkpoint's family.
const Engine = "engine"

// IsTrace reports whether the pack is an engine's trace.
func (p *Pack) IsTrace() bool { return p.Manifest.Reference.Kind == Engine }

// Arithmetic is what an engine declares of how it computes. A member that is absent is undeclared.
type Arithmetic struct {
	// what the input of a product is rounded to, by the dtype that its weight is stored in: f32, bf16, f16, q8_0, q8_1,
	// q8_k, fp8, fp8-1x128, fp8-token or fp8-tensor
	Activations map[string]string `json:"activations,omitempty"`
	// what keys and values are rounded to, and with them queries and probabilities: likewise, or fp8:STEP, E4M3 in steps of a
	// number; with E4M3 keys and values alone
	Cache string `json:"cache,omitempty"`
	// what latents are rounded to, and the key's part with RoPE, before kv_b_proj and scores read them: likewise; one word
	// is for both
	LatentCache []string `json:"latent_cache,omitempty"`
	// eager, sdpa or flash, and absorbed where the weights of latent attention are multiplied into queries and contexts
	Attention []string `json:"attention,omitempty"`
	// of flash attention over the keys: f32 or f16; or serial: those of norms are one chain of float32, in order
	Sums string `json:"sums,omitempty"`
	// where an engine in a 16-bit dtype rounds, by the name of an operation: see bounds.Points
	Rounding map[string]string `json:"rounding,omitempty"`
}

// roundings are what an Arithmetic may name: see bounds.RoundingOf.
var roundings = []string{"f32", "bf16", "f16", "q8_0", "q8_1", "q8_k", "fp8", "fp8-1x128", "fp8-token", "fp8-tensor"}

// Roundings are what an Arithmetic may name for the inputs of products with weights of a form, "" for the cache: q8_1
// is of blocks with a minimum, those of Q4_1 and Q5_1.
func Roundings(form string) []string {
	if d, _ := tensor.ParseDType(form); d.HasMinimum() {
		return roundings
	}
	return slices.DeleteFunc(slices.Clone(roundings), func(to string) bool { return to == "q8_1" })
}

// The words of Arithmetic.Attention and Arithmetic.Sums.
const (
	Flash      = "flash"
	Absorbed   = "absorbed"
	f32Sums    = "f32"
	F16Sums    = "f16"
	SerialSums = "serial"
)

// String says what is declared, in words; "" if nothing is.
func (a *Arithmetic) String() string {
	if a == nil {
		return ""
	}
	var words []string
	by := map[string][]string{}
	for _, form := range slices.Sorted(maps.Keys(a.Activations)) {
		by[a.Activations[form]] = append(by[a.Activations[form]], form)
	}
	for _, to := range roundings {
		if forms := by[to]; forms != nil {
			words = append(words, fmt.Sprintf("inputs of %s products in %s", strings.Join(forms, ", "), to))
		}
	}
	if a.Cache != "" {
		words = append(words, "cache "+a.Cache)
	}
	if a.LatentCache != nil {
		words = append(words, "latent cache "+strings.Join(a.LatentCache, ", "))
	}
	if a.Attention != nil {
		words = append(words, "attention "+strings.Join(a.Attention, ", "))
	}
	switch {
	case a.Sums == SerialSums:
		words = append(words, "sums of norms serial")
	case a.Sums != "" && slices.Contains(a.Attention, Flash):
		words = append(words, "its sums in "+a.Sums)
	}
	for _, operation := range slices.Sorted(maps.Keys(a.Rounding)) {
		words = append(words, operation+": "+a.Rounding[operation])
	}
	return strings.Join(words, "; ")
}

// checkEngine adds what is wrong with what the manifest says of an engine.
func (m *Manifest) checkEngine(add func(cause string, args ...any)) {
	a := m.Arithmetic
	if m.Reference.Kind != Engine && m.Steps != nil {
		add("steps: of an engine only, and reference.kind is %.40q", m.Reference.Kind)
	}
	switch {
	case m.Reference.Kind != Engine && a != nil:
		add("arithmetic: of an engine only, and reference.kind is %.40q", m.Reference.Kind)
		return
	case m.Reference.Kind != Engine:
		return
	case m.Reference.Name == "" || m.Reference.Version == "":
		add("reference: an engine without name or version")
	case m.Mode != "eval":
		add("mode %.40q: an engine's trace is of \"eval\"", m.Mode)
	}
	if a == nil {
		return
	}
	one := func(member, value string, known ...string) {
		if !slices.Contains(known, value) {
			add("arithmetic: %s: %.40q, not one of %s", member, value, strings.Join(known, ", "))
		}
	}
	for _, form := range slices.Sorted(maps.Keys(a.Activations)) {
		if _, err := tensor.ParseDType(form); err != nil {
			add("arithmetic: activations: %.40q is no dtype of a weight", form)
		}
		one("activations: "+text.Quote(form), a.Activations[form], Roundings(form)...)
	}
	cached := func(member, word string) {
		step, scaled := strings.CutPrefix(word, "fp8:")
		if v, err := strconv.ParseFloat(step, 64); !scaled || err != nil || !(v > 0) || v > math.MaxFloat32 {
			one(member, word, append(Roundings(""), "fp8:STEP")...)
		}
	}
	if a.Cache != "" {
		cached("cache", a.Cache)
	}
	for _, word := range a.LatentCache {
		cached("latent_cache", word)
	}
	if len(a.LatentCache) > 2 {
		add("arithmetic: latent_cache: %d words, at most one for latents and one for keys with RoPE", len(a.LatentCache))
	}
	if len(a.Attention) > 0 {
		one("attention", a.Attention[0], Eager, Sdpa, Flash)
		for _, word := range a.Attention[1:] {
			one("attention", word, Absorbed)
		}
	}
	if a.Sums != "" {
		one("sums", a.Sums, f32Sums, F16Sums, SerialSums)
	}
}

// Spell gives the tensors of an engine's trace that are named by the weights of a GGUF file the names of the stages
// that they are in a model of configuration c, and their columns and heads the order that they have there. Other
// tensors keep their names.
func (p *Pack) Spell(c *config.Config) error {
	switch {
	case p.complete != nil:
		return p.complete(c)
	case !p.IsTrace():
		return nil
	}
	var problems []problem.Problem
	family, tensors := table.FamilyOf(c), map[string]Entry{}
	for _, name := range slices.Sorted(maps.Keys(p.Manifest.Tensors)) {
		e := p.Manifest.Tensors[name]
		stage, order := family.StageOf(c, name)
		if rest, ofLayer := strings.CutPrefix(name, "blk."); stage == "" && ofLayer {
			stage = "model.layers." + rest // of a weight that is not known
		}
		if stage == "" {
			stage = name
		} else {
			e.storedName, e.storedShape, e.order = name, e.Shape, order
		}
		if other, twice := tensors[stage]; twice {
			problems = append(problems, problem.Problem{File: manifestName,
				Cause: fmt.Sprintf("tensors: %.120q and %.120q are one stage: %s", other.storedName, name, stage)})
		}
		if n := e.Shape[len(e.Shape)-1]; order != nil && order.Len() != int64(n) {
			problems = append(problems, problem.Problem{File: manifestName,
				Cause: fmt.Sprintf("tensors: %.120q: %d columns, the weight has %d rows", name, n, order.Len())})
		}
		if e.storedName != "" && len(e.Shape) == 4 && Parse(stage).IsHeadNorm() &&
			c.Rules().Attention.QKNorm == config.PerHeadTransposed {
			// [batch, tokens, heads, width] of the file becomes [batch, heads, tokens, width]
			tokens, heads, width := e.storedShape[1], e.storedShape[2], e.storedShape[3]
			e.Shape = []int{e.storedShape[0], heads, tokens, width}
			e.order = &tensor.View{Shape: []int64{int64(tokens), int64(heads), int64(width)},
				Stride: []int64{int64(width), int64(tokens * width), 1}}
		}
		tensors[stage] = e
	}
	if problems != nil {
		return problem.In(p.Dir, problems...)
	}
	if p.stages == nil {
		p.stages = map[string]string{}
	}
	for stage, e := range tensors {
		if e.storedName != "" {
			p.stages[e.storedName] = stage
		}
	}
	p.Manifest.Tensors = tensors
	return nil
}
