package checkpoint

// Adapters of peft: a LoRA that changes the weights of a checkpoint.

import (
	"context"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strings"
	"unsafe"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/convert/source"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Adapter is an open LoRA of peft: a directory with a config and a file of tensors. It is safe for concurrent use.
type Adapter struct {
	lora
	Path     string            // of the directory
	Files    []FileInfo        // the file of tensors and the config, without Infos
	Hashes   []string          // of the bytes of Files
	Problems []problem.Problem // what keeps it from being merged into any checkpoint
	Changes  []*Change         // in the order of its tensors

	dir  source.Disk
	file format.File
	keys map[string]jsontext.Value // of the config
}

// OpenAdapter opens the adapter in the directory at path, on the disk or in the hub's cache, hashes its files and
// looks for numbers that are infinite or NaN. What keeps it from being merged is in Problems.
func OpenAdapter(path string) (*Adapter, error) {
	if IsRemote(path) {
		return nil, problem.New(path, "is on a server", "download the adapter's directory")
	}
	dir, err := Snapshot(path)
	if err != nil {
		return nil, err
	}
	a := &Adapter{Path: path, dir: source.Disk(dir)}
	names, err := readDir(a.dir)
	if err != nil {
		return nil, err
	}
	weights := []string{"adapter_model.safetensors", "adapter_model.bin"}
	at := slices.IndexFunc(weights, func(name string) bool { return slices.Contains(names, name) })
	switch {
	case !slices.Contains(names, AdapterConfig):
		return nil, problem.In(path, problem.Problem{File: AdapterConfig, Cause: "missing: the directory is no adapter of peft"})
	case at < 0:
		cause := "missing"
		if i := slices.IndexFunc(names, func(name string) bool { return IsAdapter(name) && name != AdapterConfig }); i >= 0 {
			cause += ", but there is " + text.Quote(names[i]) + ": an adapter is read from one file, as peft saves it"
		}
		return nil, problem.In(path, problem.Problem{File: weights[0], Cause: cause})
	}
	data, err := a.dir.Data(weights[at])
	if err == nil {
		a.file, err = FormatOf(weights[at]).Open(data)
	}
	if err != nil {
		return nil, err
	}
	if err := a.read(weights[at]); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// read reads the config, and looks through the file of tensors, of that name.
func (a *Adapter) read(weights string) error {
	f, err := a.dir.Open(AdapterConfig)
	if err != nil {
		return err
	}
	defer f.Close()
	document, err := io.ReadAll(io.LimitReader(f, config.MaxSize))
	if err == nil {
		err = json.Unmarshal(document, &a.lora)
	}
	if err == nil {
		err = json.Unmarshal(document, &a.keys)
	}
	if err != nil {
		return problem.In(a.Path, problem.Problem{File: AdapterConfig, Cause: misread(err)})
	}
	for key, value := range a.keys {
		value.Compact()
		a.keys[key] = value
	}
	a.Problems = a.check()
	for info := range a.Tensors() {
		t, err := a.file.Tensor(info.Name)
		if err != nil {
			return err
		}
		if !info.DType.Casts() {
			continue
		}
		if n := tensor.NotFinite(t.Data, info.DType); n > 0 {
			a.Problems = append(a.Problems, problem.Problem{File: weights, Tensor: info.Name,
				Cause: text.Plural(int(n), "element") + " infinite or NaN"})
		}
	}
	hash, _, err := digest.Copy(context.Background(), io.Discard, io.NewSectionReader(a.file, 0, a.file.Size()), func(int64) {})
	a.Files = []FileInfo{{Name: weights, Size: a.file.Size()}, {Name: AdapterConfig, Size: int64(len(document))}}
	a.Hashes = []string{hash, digest.Of(document)}
	a.findChanges()
	return err
}

// Tensors yields the tensors in the order of the file.
func (a *Adapter) Tensors() iter.Seq[tensor.Info] { return a.file.Tensors() }

// Place returns where the named tensor's first byte is in the file of tensors.
func (a *Adapter) Place(name string) (offset int64) {
	_, offset, _ = a.file.Lookup(name)
	return offset
}

// Memory returns the bytes of memory that the adapter takes at most while it is open.
func (a *Adapter) Memory() (n int64) {
	for info := range a.Tensors() {
		n += perTensor + 2*NameMemory(info.Name) + 16*int64(len(info.Shape)) + int64(unsafe.Sizeof(Change{}))
	}
	return n
}

// Close closes the files.
func (a *Adapter) Close() error { return a.file.Close() }

// Change is what an adapter does to the weight, or the fused experts, of a module.
type Change struct {
	Module string // as peft calls it
	// A is [rank, in] and B is [out, rank]: the module's matrix becomes W + scale·B·A; of an embedding W + scale·(B·A)ᵀ.
	A, B      tensor.Info
	Embedding bool
	Whole     *tensor.Info // the tensor that the adapter holds in place of the base's; else nil
}

// prefix is what peft puts before the names of the base's modules.
const prefix = "base_model.model."

// factorName takes the name of a factor apart: the module, whether it is an embedding, which factor it is, and the
// name behind it, which may begin with the adapter's own.
var factorName = regexp.MustCompile(`^(.+?)\.lora_(embedding_)?([AB])((?:\.[^.]+)*)$`)

// findChanges sets Changes, and adds what is wrong with the tensors to Problems.
func (a *Adapter) findChanges() {
	wrong := func(info tensor.Info, cause string, args ...any) {
		a.Problems = append(a.Problems, problem.Problem{File: a.Files[0].Name, Tensor: info.Name, Cause: fmt.Sprintf(cause, args...)})
	}
	modules := map[string]*Change{}
	for info := range a.Tensors() {
		name := strings.TrimPrefix(info.Name, prefix)
		m := factorName.FindStringSubmatch(name)
		switch {
		case !info.DType.Casts():
			wrong(info, "dtype %s: F32, F16 or BF16 is expected", info.DType)
			continue
		case m == nil && strings.Contains(name, "lora_"), strings.Contains(name, ".token_adapter."),
			m != nil && strings.HasSuffix(m[4], ".bias"):
			wrong(info, "is no factor of a LoRA, and is not merged")
			continue
		case m == nil:
			a.Changes = append(a.Changes, &Change{Module: wholeName(name), Whole: &info})
			continue
		case len(info.Shape) != 2:
			wrong(info, "shape %v: a matrix is expected", info.Shape)
			continue
		}
		c := modules[m[1]]
		if c == nil {
			c = &Change{Module: m[1], Embedding: m[2] != ""}
			modules[m[1]] = c
			a.Changes = append(a.Changes, c)
		}
		factor := &c.A
		if m[3] == "B" {
			factor = &c.B
		}
		if factor.Name != "" {
			wrong(info, "is a second lora_%s of the module", m[3])
		}
		*factor = info
	}
	a.Changes = slices.DeleteFunc(a.Changes, func(c *Change) bool {
		switch {
		case c.Whole != nil:
		case c.A.Name == "":
			wrong(c.B, "the module has no lora_A")
			return true
		case c.B.Name == "":
			wrong(c.A, "the module has no lora_B")
			return true
		case c.A.Shape[0] != c.B.Shape[1]:
			wrong(c.A, "has rank %d, but lora_B %d", c.A.Shape[0], c.B.Shape[1])
			return true
		}
		return false
	})
}

// wholeName is the base's name of a tensor that the adapter holds whole.
func wholeName(name string) string {
	for _, part := range []string{".modules_to_save.default", ".modules_to_save", ".base_layer"} {
		name = strings.Replace(name, part, "", 1)
	}
	return name
}

// Scale returns what the product of a change is multiplied with. known is false where the config alone does not tell: of
// fused experts the name of the parameter, which the base tells, decides.
func (a *Adapter) Scale(c *Change) (scale float64, known bool) {
	rank, scale := a.Of(a.PatternName(c.Module))
	return scale, len(a.Ranks)+len(a.Alphas) == 0 || rank == c.A.Shape[0] && !strings.HasSuffix(wholeName(c.Module), ".experts")
}

// PatternName is the name of a module that rank_pattern and alpha_pattern match: of a target parameter the parameter's.
func (l *lora) PatternName(module string) string {
	if l.Parameters.Selects(module + ".weight") {
		return module + ".weight"
	}
	return module
}

// Adapted is a checkpoint whose files an adapter's follow.
type Adapted struct {
	*Checkpoint
	Adapter *Adapter
}

// ReadFile fills dst from a file of the checkpoint, or of the adapter.
func (a Adapted) ReadFile(file int, dst []byte, offset int64) error {
	if file == len(a.files) {
		return readFull(a.Adapter.file, dst, offset)
	}
	return a.Checkpoint.ReadFile(file, dst, offset)
}

// Key names the state of all files: see Checkpoint.Key.
func (a Adapted) Key() (string, error) {
	key, err := a.Checkpoint.Key()
	h, unknown := digest.New(), ""
	if strings.HasPrefix(key, source.Unknown) {
		unknown = source.Unknown
	}
	states := map[string]string{}
	if err == nil {
		err = a.Adapter.states(states)
	}
	fmt.Fprintf(h, "%q %q\n", key, states)
	return unknown + h.Name(), err
}

// States returns the state of each file, by its name.
func (a Adapted) States() (map[string]string, error) {
	states, err := a.Checkpoint.States()
	if err == nil {
		err = a.Adapter.states(states)
	}
	return states, err
}

// states adds the states of the adapter's files.
func (a *Adapter) states(states map[string]string) (err error) {
	for _, f := range a.Files {
		if states[f.Name], err = a.dir.State(f.Name); err != nil {
			return err
		}
	}
	return nil
}
