package pack

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Dumps: what SGLang writes of its steps by itself, read as a trace. The dumper writes a file for each input and output of a
// module (DUMPER_ENABLE=1 DUMPER_NON_INTRUSIVE_MODE=all), the older dumper one for each step
// (--debug-tensor-dump-output-folder). Tensors stay in these files until a stage needs them.

// leavesOf reads a file that torch.save wrote, and runs nothing of it. It calls f for each tensor, text and number in it: of a
// tensor with its dtype and shape and where its elements begin in the file, or with the error that says why they cannot be read.
type leavesOf func(path string, f func(name string, t *tensor.Info, offset int64, value any)) error

// dump is the files of a dump, while it is read.
type dump struct {
	files  []string
	steps  []*dumpedStep
	places []dumpedRow // of each row of the trace
	unread map[string]Unread
}

// dumpedStep is what a step of the engine took and gave.
type dumpedStep struct {
	number  int
	inputs  map[string][]int // input_ids, positions, seq_lens
	rids    []string         // of its requests; nil if the dump does not say
	tensors map[string]dumped
}

// dumped is a tensor in a file of a dump.
type dumped struct {
	tensor.Info
	file   int // of dump.files
	offset int64
	twice  bool // the step gave it several times
}

// dumpedRow is the step, of dump.steps, and the row in it that computed a row of the trace.
type dumpedRow struct{ step, row int }

// gathered is a stage whose rows lie in files of a dump.
type gathered struct {
	*dump
	parts       []*dumped // by the step
	first, size int64     // bytes of a row before the stage's columns, and of these
}

var (
	dumperFile = regexp.MustCompile(`^step=(\d+)___rank=(\d+)___dump_index=\d+___name=(.+?)(?:___[a-z_]+=[^=]*)*\.pt$`)
	passFile   = regexp.MustCompile(`^Pass(\d{5,})\.pt$`)
)

// dumpFiles returns the files of a dump in dir, or in directories in it, and in which of these they are.
func dumpFiles(dir string) (files, dirs []string, err error) {
	for _, pattern := range []string{"*.pt", "*/*.pt"} {
		found, err := filepath.Glob(filepath.Join(globEscape.Replace(dir), pattern))
		if err != nil {
			return nil, nil, err
		}
		for _, file := range found {
			if name := filepath.Base(file); dumperFile.MatchString(name) || passFile.MatchString(name) {
				files, dirs = append(files, file), append(dirs, filepath.Dir(file))
			}
		}
	}
	slices.Sort(dirs)
	return files, slices.Compact(dirs), nil
}

var globEscape = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`)

// IsDump reports whether dir is no golden pack, and has files that SGLang dumps.
func IsDump(dir string) bool {
	if Look(dir) == nil {
		return false
	}
	files, _, err := dumpFiles(dir)
	return err == nil && len(files) > 0
}

// OpenDump reads the steps of a dump of SGLang, and hashes its files. Its stages have their names after Spell.
func OpenDump(dir string, leaves leavesOf) (*Pack, error) {
	p := &Pack{Dir: dir, Replaced: map[string]tensor.Tensor{}, elsewhere: map[string]func([]byte, int64) error{}}
	files, dirs, err := dumpFiles(dir)
	switch {
	case err != nil:
		return nil, err
	case len(dirs) != 1:
		return nil, p.Fault("", fmt.Sprintf("it has %d dumps, of several runs, or of the ranks of tensor parallelism, each of which has "+
			"a part of the channels: name the directory of one run on one rank", len(dirs)))
	}
	d := &dump{files: files, unread: map[string]Unread{}}
	hash, byNumber := sha256.New(), map[int]*dumpedStep{}
	for i, file := range files {
		name := filepath.Base(file)
		of := append(dumperFile.FindStringSubmatch(name), passFile.FindStringSubmatch(name)...) // number, rank, name
		number, err := strconv.Atoi(of[1])
		if err != nil || len(of) > 2 && of[2] != "0" {
			return nil, p.Fault(text.Quote(name), "of another rank than 0: under tensor parallelism a rank has a part of the channels: "+
				"dump one rank")
		}
		sum, err := HashFile(file)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(hash, "%s %s\n", name, sum)
		step := byNumber[number]
		if step == nil {
			step = &dumpedStep{number: number, inputs: map[string][]int{}, tensors: map[string]dumped{}}
			byNumber[number] = step
		}
		var broken error
		err = leaves(file, func(leaf string, t *tensor.Info, offset int64, value any) {
			if len(of) > 2 {
				rest, isValue := strings.CutPrefix(leaf, "value")
				if !isValue {
					return // meta
				}
				leaf = of[3] + rest
			}
			broken = cmp.Or(broken, d.take(step, leaf, t, i, offset, value))
		})
		if err == nil && broken != nil {
			err = p.wrap(name, broken)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, number := range slices.Sorted(maps.Keys(byNumber)) {
		if s := byNumber[number]; len(s.inputs["input_ids"]) > 0 {
			d.steps = append(d.steps, s)
		} else {
			d.leave("step "+strconv.Itoa(number), len(s.tensors), "it has no input_ids")
		}
	}
	p.Hash = "sha256:" + hex.EncodeToString(hash.Sum(nil))
	p.complete = func(c *config.Config) error { return p.addStages(c, d) }
	how := "DUMPER_NON_INTRUSIVE_MODE=all"
	if passFile.MatchString(filepath.Base(files[0])) {
		how = "--debug-tensor-dump-output-folder"
	}
	requests, err := d.requests()
	if err != nil {
		return nil, p.Fault("", err.Error())
	}
	p.layOut(requests, d)
	p.DType = tensor.F32
	for _, s := range d.steps {
		for _, name := range slices.Sorted(maps.Keys(s.tensors)) {
			if t := s.tensors[name].DType; strings.HasSuffix(name, "embed_tokens.output") && t.Casts() {
				p.DType = t
			}
		}
	}
	p.Manifest.Mode, p.Manifest.ComputeDType = "eval", torchNames[p.DType]
	p.Manifest.Reference = Reference{Kind: Engine, Name: "sglang", Version: "a dump",
		Recorded: fmt.Sprintf("%s, %s of %s", how, text.Plural(len(d.steps), "step"), text.Plural(len(requests), "request"))}
	return p, nil
}

// torchNames are the dtypes that models are computed in, as torch spells them.
var torchNames = map[tensor.DType]string{tensor.F32: "float32", tensor.BF16: "bfloat16", tensor.F16: "float16"}

// leave notes tensors that are no part of the trace.
func (d *dump) leave(name string, n int, why string) {
	if s := Parse(name); s.Layer >= 0 {
		name = "model.layers.*." + s.Within
	}
	u := d.unread[name+why]
	d.unread[name+why] = Unread{name, u.Count + n, why}
}

// take notes a leaf of a file of a dump: what a step took or gave. Names become those of the dumper: MODULE.output or, of several
// tensors, MODULE.output.1.
func (d *dump) take(step *dumpedStep, name string, t *tensor.Info, file int, offset int64, value any) error {
	if rest, ok := strings.CutPrefix(name, "non_intrusive__"); ok {
		name = rest
	} else if rest, ok := strings.CutPrefix(name, "model.forward_batch_info."); ok {
		name = rest
	} else if kind, _, _ := strings.Cut(name, "."); kind == "rids" {
		if id, ok := value.(string); ok {
			step.rids = append(step.rids, id)
		}
		return nil
	} else if m := passName.FindStringSubmatch(name); m != nil {
		name = m[1] + ".output" + m[2]
	}
	err, _ := value.(error)
	switch {
	case name == inputIDs || name == "positions" || name == "seq_lens":
		if t == nil {
			return cmp.Or(err, errors.New(name+": not a tensor"))
		}
		ids, err := d.integers(dumped{*t, file, offset, false})
		step.inputs[name] = ids
		return err
	case err != nil:
		d.leave(name, 1, err.Error())
	case t != nil:
		_, twice := step.tensors[name]
		step.tensors[name] = dumped{*t, file, offset, twice}
	}
	return nil
}

var passName = regexp.MustCompile(`^((?:model|lm_head|logits_processor).*?)(\.\d+)?$`)

// integers reads a small tensor of whole numbers.
func (d *dump) integers(t dumped) ([]int, error) {
	width := map[tensor.DType]int{tensor.I64: 8, tensor.I32: 4}[t.DType]
	if n := elements(t.Shape); width == 0 || n > maxTokensFile/8 {
		return nil, fmt.Errorf("%s %v, whole numbers expected", t.DType, t.Shape)
	}
	data := make([]byte, width*elements(t.Shape))
	if err := d.read(data, t.file, t.offset); err != nil {
		return nil, err
	}
	values := make([]int, elements(t.Shape))
	for i := range values {
		if width == 4 {
			values[i] = int(int32(binary.LittleEndian.Uint32(data[4*i:])))
		} else {
			values[i] = int(int64(binary.LittleEndian.Uint64(data[8*i:])))
		}
	}
	return values, nil
}

// read reads bytes of a file of the dump.
func (d *dump) read(data []byte, file int, offset int64) error {
	f, err := os.Open(d.files[file])
	if err != nil {
		return problem.System(d.files[file], "", err)
	}
	defer f.Close()
	_, err = f.ReadAt(data, offset)
	return err
}

// read reads bytes of the stage from at on.
func (g *gathered) read(data []byte, at int64) error {
	for len(data) > 0 {
		row, within := at/g.size, at%g.size
		place := g.places[row]
		part := g.parts[place.step]
		stride := part.DType.Bytes(int64(part.Shape[len(part.Shape)-1]))
		n := g.size - within
		for next := row + 1; g.size == stride && n < int64(len(data)) && next < int64(len(g.places)) &&
			g.places[next] == (dumpedRow{place.step, place.row + int(next-row)}); next++ {
			n += g.size // rows that follow one another in the file
		}
		n = min(n, int64(len(data)))
		if err := g.dump.read(data[:n], part.file, part.offset+int64(place.row)*stride+g.first+within); err != nil {
			return err
		}
		data, at = data[n:], at+n
	}
	return nil
}

// addStages adds the tensors of a dump, with the names of the stages that they are in a model of configuration c.
func (p *Pack) addStages(c *config.Config, d *dump) error {
	if d.unread == nil {
		return nil // done
	}
	stages := map[string]*gathered{}
	for i, s := range d.steps {
		for _, name := range slices.Sorted(maps.Keys(s.tensors)) {
			t, parts := s.tensors[name], dumpedStages(c, name)
			width := int64(0)
			if len(t.Shape) == 2 {
				width = int64(t.Shape[1])
			}
			sum := int64(0)
			for _, part := range parts {
				sum += part.width
			}
			switch {
			case parts == nil:
				d.leave(name, 1, "tensors that are no stage")
			case len(t.Shape) != 2 || t.Shape[0] != len(s.inputs[inputIDs]):
				d.leave(name, 1, "rows of other tokens")
			case t.twice:
				d.leave(name, 1, "a step gave it several times")
			case sum > 0 && sum != width:
				d.leave(name, 1, fmt.Sprintf("%d channels, where the model has %d: of one rank of several?", width, sum))
			default:
				first := int64(0)
				for _, part := range parts {
					g := stages[part.stage]
					if part.width == 0 {
						part.width = width / int64(len(parts))
					}
					if g == nil {
						g = &gathered{dump: d, parts: make([]*dumped, len(d.steps)), first: t.DType.Bytes(first), size: t.DType.Bytes(part.width)}
						stages[part.stage] = g
					}
					if g.size == t.DType.Bytes(part.width) {
						g.parts[i] = &t
					}
					first += part.width
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(stages)) {
		if err := p.addDumped(c, name, stages[name]); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.unread)) {
		p.Unread = append(p.Unread, d.unread[key])
	}
	d.unread = nil
	return nil
}

// addDumped adds a stage if the dump has all of its rows.
func (p *Pack) addDumped(c *config.Config, name string, g *gathered) error {
	missing, last := 0, -1
	for _, place := range g.places {
		if g.parts[place.step] == nil {
			missing++
		} else {
			last = place.step
		}
	}
	if missing > 0 {
		g.leave(name, len(g.steps), fmt.Sprintf("%d of %d rows are not there", missing, len(g.places)))
		return nil
	}
	one, of := g.parts[last], p.Manifest.Tensors[inputIDs].Shape
	kind, width := Parse(name).Within, int(g.size/one.DType.Bytes(1))
	normalises, scale := c.TopKWeights()
	switch {
	case kind == TopKIdx:
		k := c.MoE.NumExpertsPerTok
		ids := make([]int, 0, len(g.places)*k)
		for _, place := range g.places {
			t := *g.parts[place.step]
			t.offset, t.Shape = t.offset+int64(place.row)*g.size, []int{width}
			row, err := g.integers(t)
			if err != nil || width < k {
				return p.Fault(name, fmt.Sprintf("choices of %d experts in %s: %v", width, t.DType, err))
			}
			ids = append(ids, row...)
		}
		p.addInts(name, []int{len(g.places), width}, ids)
		return nil
	case !one.DType.Casts():
		g.leave(name, len(g.steps), one.DType.String()+", not F32, BF16 or F16")
		return nil
	case kind == TopKWeight && scale != 1:
		data := make([]byte, int64(len(g.places))*g.size)
		if err := g.read(data, 0); err != nil {
			return err
		}
		shape := []int{len(g.places), width}
		weights, err := tensor.Tensor{DType: one.DType, Shape: shape, Data: data}.Float32s(nil)
		if err != nil {
			return err
		}
		sum := 0.0
		for _, w := range weights[:width] {
			sum += float64(w)
		}
		switch {
		case normalises && math.Abs(sum-1) < leastFactor:
			for i, w := range weights {
				weights[i] = w * float32(scale)
			}
		case !normalises || math.Abs(sum/scale-1) >= leastFactor:
			g.leave(name, len(g.steps), "whether routed_scaling_factor is in it is not known")
			return nil
		}
		p.Manifest.Tensors[name] = Entry{DType: tensor.F32, Shape: shape}
		data, _ = binary.Append(nil, binary.LittleEndian, weights)
		p.Replaced[name] = tensor.Tensor{DType: tensor.F32, Shape: shape, Data: data}
		return nil
	}
	shape := []int{of[0], of[1], width}
	if strings.HasPrefix(kind, "mlp.gate.") {
		shape = []int{len(g.places), width}
	}
	p.Manifest.Tensors[name] = Entry{DType: one.DType, Shape: shape}
	p.elsewhere[name] = g.read
	return nil
}

// leastFactor is by how much, at most, the sum of a token's weights is off 1, or off routed_scaling_factor, to tell which it is:
// BF16 rounds sums of 32 weights to 1 ± .06.
const leastFactor = 0.1

// dumpedPart is a stage, and how many columns of a tensor it is; 0 if the tensor's parts are equally wide.
type dumpedPart struct {
	stage string
	width int64
}

var dumpedKinds = regexp.MustCompile(`^(?:(?:input|post_attention)_layernorm|self_attn(?:\.(?:[qkv]_proj|q_[ab]_proj|q_a_layernorm|` +
	`kv_a_proj_with_mqa|kv_a_layernorm|kv_b_proj|o_proj))?|mlp(?:\.shared_experts)?(?:\.(?:gate|up)_proj)?)\.output$`)

// dumpedStages returns the stages that a tensor of a dump is, by its columns: a fused product is several.
func dumpedStages(c *config.Config, name string) []dumpedPart {
	s, a := Parse(name), &c.Attention
	in := func(kind string) string { return StageOf(s.Layer, kind) }
	module, fused := "", ""
	for _, role := range []string{"fused_qkv_a_proj_with_mqa", "fused_qkv_a_proj", "qkv_proj", "gate_up_proj"} {
		if m, ok := strings.CutSuffix(s.Within, "."+role+".output"); ok {
			module, fused = m+".", role
		}
	}
	one, pair := strings.CutSuffix(s.Within, "norm.output.0")
	sum, isSum := strings.CutSuffix(s.Within, "norm.output.1")
	input, isInput := strings.CutSuffix(s.Within, "_proj.inputs.0")
	switch {
	case s.Within == "model.embed_tokens.output", s.Within == "model.norm.output":
		return []dumpedPart{{s.Within, 0}}
	case pair && s.Layer < 0:
		return []dumpedPart{{LastNorm, 0}}
	case isSum && s.Within == "model.norm.output.1":
		return []dumpedPart{{InputStage(c.NumHiddenLayers), 0}}
	case s.Layer < 0:
		return nil
	case isSum && sum == "input_layer" && s.Layer > 0: // the residual stream that the norm has added up
		return []dumpedPart{{InputStage(s.Layer), 0}}
	case strings.HasPrefix(fused, "fused"):
		return []dumpedPart{{in(module + "q_a_proj.output"), int64(a.QLoraRank)},
			{in(module + "kv_a_proj_with_mqa.output"), int64(a.KVLoraRank + a.QKRopeHeadDim)}}
	case fused == "qkv_proj":
		groups := int64(a.NumKeyValueHeads * c.QKHeadDim())
		return []dumpedPart{{in(module + "q_proj.output"), int64(a.NumAttentionHeads * c.QKHeadDim())}, {in(module + "k_proj.output"), groups},
			{in(module + "v_proj.output"), groups}}
	case fused != "":
		return []dumpedPart{{in(module + "gate_proj.output"), 0}, {in(module + "up_proj.output"), 0}}
	case s.Within == "mlp.gate.output":
		return []dumpedPart{{in(GateLogits), 0}}
	case s.Within == "mlp.topk.output.0":
		return []dumpedPart{{in(TopKWeight), 0}}
	case s.Within == "mlp.topk.output.1":
		return []dumpedPart{{in(TopKIdx), 0}}
	case s.Within == "self_attn.attn_mha.output":
		return []dumpedPart{{in(Attended), 0}}
	case isInput && (input == "self_attn.o" || input == "mlp.down" || input == "mlp.shared_experts.down"):
		return []dumpedPart{{in(input + "_proj.input"), 0}}
	case pair && dumpedKinds.MatchString(one+"norm.output"):
		return []dumpedPart{{in(one + "norm.output"), 0}}
	case dumpedKinds.MatchString(s.Within):
		return []dumpedPart{{in(s.Within), 0}}
	}
	return nil
}
