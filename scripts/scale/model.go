//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote/remotetest"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// published is a published model: its config.json below fixtures, and what its files are known to hold.
type published struct {
	name, config string
	shard        int64 // bytes of the largest file's tensors
	tensors      int
	bytes        int64 // of the tensors
}

// models are the models that are generated. Each has as many tensors as its published files; GLM-4.7 has those of its table.
var models = []published{
	{"DeepSeek-V3", "configs/deepseek-v3.json", 4_302_300_000, 91_991, 0},
	{"GLM-4.7", "configs/glm-4.7.json", 8e9, 44_691, 0}, // GLM-4.6 has the same shapes
	{"Kimi-K2", "configs/kimi-k2-instruct.json", 17e9, 139_583, 0},
	{"DeepSeek-V4-Flash", "states/deepseek-v4-flash/config.json", 4e9, 69_187, 0},
}

// generate adds the files of the model to files, below org/NAME, and returns the bytes of its tensors.
func (m published) generate(files map[string]remotetest.Blob) (int64, error) {
	document, err := os.ReadFile(filepath.Join("fixtures", m.config))
	if err != nil {
		return 0, err
	}
	c, err := config.Parse(bytes.NewReader(document))
	if err != nil {
		return 0, err
	}
	s := plan.Synthetic{Config: document, Rule: "rings"}
	rings, of := rings{experts: uint64(c.MoE.NRoutedExperts)}, map[string]*window{}
	for _, info := range table.FamilyOf(c).Implied(c) {
		w := rings.window(info)
		if namings := table.FamilyOf(c).Namings; namings != nil {
			info.Name = namings[0].Of(c, info.Name)
		}
		s.Tensors, of[info.Name] = append(s.Tensors, info), w
	}
	if len(s.Tensors) != m.tensors {
		return 0, fmt.Errorf("%s: %d tensors, not %d", m.name, len(s.Tensors), m.tensors)
	}
	p, err := plan.Synthesis(s, m.shard)
	if err != nil {
		return 0, err
	}
	for i, f := range p.Files {
		header, err := p.Header(i)
		if err != nil {
			return 0, err
		}
		blobs := []remotetest.Blob{bytes.NewReader(header)}
		for j := range p.Tensors {
			if t := &p.Tensors[j]; t.File == i {
				blobs = append(blobs, of[t.Name])
			}
		}
		j := join(blobs)
		if j.Size() != f.Size {
			return 0, fmt.Errorf("%s: %s has %d bytes, not %d", m.name, f.Name, j.Size(), f.Size)
		}
		files["org/"+m.name+"/"+f.Name] = j
	}
	for _, o := range p.Others {
		var text bytes.Buffer
		if err := p.WriteOther(&text, o); err != nil {
			return 0, err
		}
		files["org/"+m.name+"/"+o.Name] = bytes.NewReader(text.Bytes())
	}
	_, size := p.Bytes()
	return size, nil
}

// rings are rows of numbers that tensors repeat: of each kind and width one ring. A tensor begins at a row of its own,
// so that no two experts of a layer are the same, and equal runs of rows are equal bytes in what is made of them.
type rings struct {
	experts uint64
	made    []*ring
}

// ring is a matrix whose last row is followed by its first.
type ring struct {
	kind  kind
	dtype tensor.DType
	row   int64 // bytes
	begun int64 // tensors that began in it
	bytes []byte
}

// kind is what numbers are.
type kind int

const (
	matrix  kind = iota
	scales       // the same in each row
	norm         // a vector
	experts      // of a table of experts
)

// ringBytes is about the size of a ring. It holds rows enough for the experts of a layer.
const ringBytes = 8 << 20

// window is the bytes of a tensor.
type window struct {
	*ring
	first, size int64
}

// window gives a tensor its ring and its first row.
func (r *rings) window(info tensor.Info) *window {
	k, row := matrix, info.DType.Bytes(int64(info.Shape[len(info.Shape)-1]))
	switch {
	case strings.HasSuffix(info.Name, "_scale_inv") || strings.HasSuffix(info.Name, ".scale") || info.DType == tensor.F8E8M0:
		k = scales
	case info.DType == tensor.I64:
		k = experts
	case len(info.Shape) == 1:
		k = norm
	}
	i := slices.IndexFunc(r.made, func(have *ring) bool { return have.kind == k && have.dtype == info.DType && have.row == row })
	if i < 0 {
		i = len(r.made)
		r.made = append(r.made, &ring{kind: k, dtype: info.DType, row: row})
		r.made[i].fill(r.experts)
	}
	of := r.made[i]
	rows := int64(len(of.bytes)) / row
	w := &window{of, of.begun * 7 % rows * row, info.Bytes()}
	of.begun++
	return w
}

// Size returns the bytes of the tensor.
func (w *window) Size() int64 { return w.size }

// ReadAt copies from the ring.
func (w *window) ReadAt(dst []byte, at int64) (n int, err error) {
	for at += w.first; n < len(dst); {
		n += copy(dst[n:], w.bytes[(at+int64(n))%int64(len(w.bytes)):])
	}
	return n, nil
}

// fill makes the rows, of numbers that trained weights might be: normal ones, those of norms near 1.
func (r *ring) fill(expertCount uint64) {
	h := fnv.New64a()
	fmt.Fprint(h, r.kind, r.dtype, r.row)
	random := rand.New(rand.NewPCG(h.Sum64(), 1))
	rows := max(1, ringBytes/r.row)
	switch r.kind {
	case scales:
		rows = 1
	case norm:
		rows = 64
	case experts:
		rows = 1 << 16
	}
	if rows > 1 {
		rows += 1 - rows%2 // odd, and no multiple of 7: tensors begin at every row
		if rows%7 == 0 {
			rows += 2
		}
	}
	if r.kind == experts {
		for range rows {
			first, step := random.Uint64N(expertCount), 1+2*random.Uint64N(expertCount/2-1)
			for j := range uint64(r.row / 8) {
				r.bytes = append(r.bytes, littleEndian((first+j*step)%expertCount, 8)...)
			}
		}
		return
	}
	var samples [1 << 12][]byte
	for i := range samples {
		samples[i] = r.sample(random)
	}
	for int64(len(r.bytes)) < rows*r.row {
		r.bytes = append(r.bytes, samples[random.Uint32()>>20]...)
	}
}

// sample makes one number.
func (r *ring) sample(random *rand.Rand) []byte {
	x := float32(random.NormFloat64())
	switch {
	case r.kind == scales && r.dtype == tensor.F8E8M0:
		return []byte{byte(118 + random.IntN(3))} // 2^-9 to 2^-7
	case r.kind == scales:
		x = 2e-4 * (1 + 0.3*float32(random.Float64()))
	case r.kind == norm:
		x = 1 + 0.1*x
	case r.dtype == tensor.F8E4M3:
		return []byte{tensor.FP8.Nearest(min(max(100*x, -448), 448))}
	case r.dtype == tensor.I8: // two codes of FP4
		return []byte{fp4(2*x) | fp4(2*float32(random.NormFloat64()))<<4}
	default:
		x *= 0.02
	}
	if b := math.Float32bits(x); r.dtype == tensor.F32 {
		return littleEndian(uint64(b), 4)
	} else {
		return littleEndian(uint64(b>>16), 2)
	}
}

// fp4 returns the code of the largest number of FP4 that is not beyond x.
func fp4(x float32) (code byte) {
	if x < 0 {
		return 8 | fp4(-x)
	}
	for i, v := range []float32{0.5, 1, 1.5, 2, 3, 4, 6} {
		if x >= v {
			code = byte(i + 1)
		}
	}
	return code
}

func littleEndian(x uint64, bytes int) (b []byte) {
	for range bytes {
		b, x = append(b, byte(x)), x>>8
	}
	return b
}

// mix is the finaliser of splitmix64.
func mix(z uint64) uint64 {
	z += 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
