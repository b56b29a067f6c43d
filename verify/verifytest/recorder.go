package verifytest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
)

// Recorder is a model.Trace that puts each stage into a pack, unless it is in Manifest.Absent: into a file of its own, or
// into Pack.Replaced, in memory, if the pack has no directory.
type Recorder struct{ *pack.Pack }

// NewRecorder returns a recorder with an empty pack in dir, or in memory if dir is "", of a right reference of c that
// computes in d.
func NewRecorder(dir string, c *config.Config, d tensor.DType) *Recorder {
	torch := map[tensor.DType]string{tensor.F32: "float32", tensor.BF16: "bfloat16", tensor.F16: "float16"}[d]
	kind := map[config.Reference]string{config.Remote: "remote code", config.Native: "transformers native"}[c.Reference]
	return &Recorder{&pack.Pack{Dir: dir, DType: d, Manifest: pack.Manifest{Format: "golden/1", Mode: "eval",
		ComputeDType: torch, Reference: pack.Reference{Kind: kind}, Tensors: map[string]pack.Entry{}},
		Replaced: map[string]tensor.Tensor{}}}
}

// Stage keeps the output of a stage.
func (r *Recorder) Stage(name string, a *model.Activation) error {
	if slices.Contains(r.Manifest.Absent.Stages, pack.Parse(name).Within) {
		return nil
	}
	x := tensor.Tensor{DType: a.DType, Shape: a.Shape}
	for _, v := range a.Values {
		switch a.DType {
		case tensor.F32:
			x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(v))
		case tensor.BF16:
			x.Data = binary.LittleEndian.AppendUint16(x.Data, uint16(math.Float32bits(v)>>16))
		default:
			x.Data = binary.LittleEndian.AppendUint16(x.Data, half(v))
		}
	}
	return r.Keep(name, x)
}

// half is the F16 pattern of a number that F16 has.
func half(v float32) uint16 {
	n := tensor.Ordinal(v, tensor.F16)
	if n < 0 {
		return uint16(-n) | 1<<15
	}
	return uint16(n)
}

// TopK keeps a gate's choice of experts.
func (r *Recorder) TopK(name string, c *model.Choice[*model.Activation]) error {
	return r.KeepInts(name, []int{c.Scores.Rows(), len(c.Idx) / c.Scores.Rows()}, c.Idx)
}

// KeepInts keeps integers.
func (r *Recorder) KeepInts(name string, shape, values []int) error {
	x := tensor.Tensor{DType: tensor.I64, Shape: shape}
	for _, v := range values {
		x.Data = binary.LittleEndian.AppendUint64(x.Data, uint64(v))
	}
	return r.Keep(name, x)
}

// Keep adds a tensor to the pack, or replaces it.
func (r *Recorder) Keep(name string, x tensor.Tensor) error {
	if r.Dir == "" {
		r.Manifest.Tensors[name], r.Replaced[name] = pack.Entry{DType: x.DType, Shape: x.Shape}, x
		return nil
	}
	header := fmt.Sprintf(`{%q:{"dtype":%q,"shape":%s,"data_offsets":[0,%d]}}`, name, x.DType,
		strings.ReplaceAll(fmt.Sprint(x.Shape), " ", ","), len(x.Data))
	f, err := os.CreateTemp(r.Dir, "*.safetensors")
	if err != nil {
		return err
	}
	_, err = f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...))
	if err == nil {
		_, err = f.Write(x.Data)
	}
	r.Manifest.Tensors[name] = pack.Entry{DType: x.DType, Shape: x.Shape, File: filepath.Base(f.Name())}
	return errors.Join(err, f.Close())
}

// Write writes the manifest, with the hashes of the files, so that pack.Open opens the pack.
func (r *Recorder) Write() (err error) {
	r.Manifest.Files = map[string]string{}
	for _, entry := range r.Manifest.Tensors {
		if r.Manifest.Files[entry.File], err = pack.HashFile(filepath.Join(r.Dir, entry.File)); err != nil {
			return err
		}
	}
	text, err := json.Marshal(r.Manifest)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.Dir, "manifest.json"), text, 0o644)
}
