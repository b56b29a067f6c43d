package plan

// FP8 with a scale for each block of 128 × 128, as DeepSeek publishes it: which weights become
// codes, and what config.json says of them.

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// scaleFormat is scale_fmt of quantization_config for scales that are powers of two.
const scaleFormat = "ue8m0"

// fp8Edits gives config.json a quantization_config as DeepSeek's files have it, indented like them, unless it has one.
func (c *conversion) fp8Edits(values map[string]string) []edit {
	q := struct {
		ActivationScheme string `json:"activation_scheme"`
		Fmt              string `json:"fmt"`
		QuantMethod      string `json:"quant_method"`
		ScaleFmt         string `json:"scale_fmt,omitempty"`
		WeightBlockSize  [2]int `json:"weight_block_size"`
	}{"dynamic", "e4m3", tensor.FP8.Method, "", [2]int{fp8Block, fp8Block}}
	if have := values["quantization_config"]; have != "" && have != "null" {
		json.Unmarshal([]byte(have), &q) // the config was parsed; another scale_fmt is no ue8m0
		c.powersOfTwo = q.ScaleFmt == scaleFormat
		return nil
	}
	if c.powersOfTwo = c.o.PowersOfTwo; c.powersOfTwo {
		q.ScaleFmt = scaleFormat
	}
	written, _ := json.MarshalIndent(q, "  ", "  ") // a plain struct: nothing can fail
	edits := []edit{{"quantization_config", written}}
	if c.src.Config.Windowed() { // experts are FP4 without it
		edits = append(edits, edit{"expert_dtype", []byte(`"fp8"`)})
	}
	return edits
}

// encoder decides which weights become codes.
type encoder struct {
	*conversion
	written *config.Config
	kept    int       // weights that are FP8 in the source
	ragged  int       // matrices with blocks of different sizes
	first   string    // the first of these
	refused []refusal // one for each cause
}

// refusal is why some weights cannot be written.
type refusal struct {
	cause   string
	first   string // the first of these weights
	weights int    // how many
}

// refuse adds a weight to those that have this cause.
func (e *encoder) refuse(w *weights.Weight, cause string) {
	i := slices.IndexFunc(e.refused, func(r refusal) bool { return r.cause == cause })
	if i < 0 {
		i = len(e.refused)
		e.refused = append(e.refused, refusal{cause: cause, first: w.Name})
	}
	e.refused[i].weights++
}

// covers reports whether the output's quantization_config covers a weight.
func (e *encoder) covers(w *weights.Weight) bool {
	if w.Row == nil || w.IsScales() || !e.o.encodes() {
		return false
	}
	form := (table.Slot{Name: w.Name, Shape: w.Shape, Place: w.Place}).Form(e.written)
	return form == tensor.FP8 || form == tensor.FP4
}

// encoded returns the outputs of a weight: its codes, and its scales.
func (e *encoder) encoded(parts []*weights.Weight) []output {
	w := parts[0]
	if block := e.written.Quantization.Block; block != [2]int{fp8Block, fp8Block} {
		e.refuse(w, fmt.Sprintf("quantization_config has blocks of %d × %d, but FP8 is written in blocks of %d × %d; "+
			"convert with --type bf16 first", block[0], block[1], fp8Block, fp8Block))
	}
	if w.Scaled() && w.DType != tensor.FP8.Codes {
		e.refuse(w, "is quantised already ("+w.Form().Name+"); --type bf16 decodes it")
		return nil
	} else if w.Scaled() {
		e.kept++
		if err := w.CheckScales(); err != nil {
			e.problem(w.Name, "%v", err)
		} else if e.o.PowersOfTwo && !e.powersOfTwo {
			e.refuse(w, "is FP8 already, with scales that need not be powers of two: leave out --scales "+scaleFormat+
				", or convert with --type bf16 first")
		}
		return []output{{Info: w.Info, parts: parts}}
	}
	if from := e.src.DecodedFrom(w.Stored); from != "" {
		e.refuse(w, "is quantised already ("+from+"); --type bf16 decodes it")
	} else if !w.DType.Casts() {
		e.refuse(w, "dtype "+w.DType.String()+" cannot be quantised")
	}
	if slices.ContainsFunc(w.Shape, func(n int) bool { return n > fp8Block && n%fp8Block != 0 }) {
		e.ragged++
		e.first = cmp.Or(e.first, w.Name)
	}
	infos := tensor.FP8.Tensors(w.Name, w.Shape, w.DType, [2]int{fp8Block, fp8Block})
	return []output{{Info: infos[0], parts: parts}, {Info: infos[1], parts: parts, scales: true}}
}

// finish reports the refusals, and tells what a reader should know of the outputs.
func (e *encoder) finish() {
	for _, r := range e.refused {
		others := ""
		if r.weights > 1 {
			others = " (as for " + text.Plural(r.weights-1, "other weight") + ")"
		}
		e.problem(r.first, "%s%s", r.cause, others)
	}
	if e.kept > 0 {
		e.note("%s: FP8 in the source already, copied with their scales", text.Plural(e.kept, "weight"))
	}
	if e.ragged > 0 {
		e.note("the last blocks of some matrices are smaller than %d × %d, as in DeepSeek's files: of %s, the first is %s; "+
			"transformers takes the blocks of a matrix for equal where it dequantises (without a GPU), and refuses or "+
			"misreads it",
			fp8Block, fp8Block, text.Plural(e.ragged, "weight"), text.Quote(e.first))
	}
}
