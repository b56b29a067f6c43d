package convert

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/convert/internal/lanes"
	"dsmoe/convert/safetensors"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// fixtureOf is a fixture's checkpoint.
func fixtureOf(name string) string { return filepath.Join("..", "fixtures", filepath.FromSlash(name)) }

// manyTiles writes a checkpoint some of whose tensors are several tiles, none of them
// whole, in BF16.
func manyTiles(t testing.TB) string {
	document := strings.Replace(readFile(t, whole, configName), `"vocab_size": 256`, `"vocab_size": 10007`, 1)
	c, err := config.Parse(strings.NewReader(document))
	require.NoError(t, err)
	source := model.NewSynthetic(c, 1)
	dst := filepath.Join(t.TempDir(), "tiles", "checkpoint")
	require.NoError(t, os.Mkdir(filepath.Dir(dst), 0o755))
	require.NoError(t, Write(t.Context(), dst, Output{
		Tensors: slices.Collect(source.Tensors()),
		Config:  []byte(document),
		Fill:    func(_ context.Context, i tensor.Info, dst []byte, at int64) error { return source.Fill(i, dst, at) },
	}, WriteOptions{}))
	return dst
}

func open(t testing.TB, path string) *Checkpoint {
	t.Helper()
	c, err := Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// converted converts the checkpoint at src into a new directory.
func converted(t testing.TB, src string, o Options) string {
	t.Helper()
	dst := filepath.Join(t.TempDir(), "out")
	r, err := Run(t.Context(), dst, open(t, src), o)
	require.NoError(t, err)
	require.Equal(t, !o.NoVerify, r.Verified)
	requireChecked(t, dst)
	requireEntries(t, filepath.Dir(dst), "out")
	return dst
}

// requireChecked demands that a directory fits its manifest.
func requireChecked(t testing.TB, dst string) {
	t.Helper()
	r, err := Check(t.Context(), dst, nil)
	require.NoError(t, err)
	require.Empty(t, r.Problems)
}

// TestThereAndBack: other shards, fused, per expert again: every tensor's bytes are
// the source's.
func TestThereAndBack(t *testing.T) {
	for _, name := range []string{"v1-base", "v2-lite", "v3", "v3-fp8"} {
		t.Run(name, func(t *testing.T) {
			src := fixtureOf(name + "/checkpoint")
			sharded := converted(t, src, Options{MaxShardBytes: 100_000})
			fused := converted(t, sharded, Options{Experts: FusedExperts, MaxShardBytes: -1})
			for info := range open(t, fused).Tensors() {
				_, _, _, expert := parseExpert(info.Name)
				require.False(t, expert, info.Name)
			}
			requireSameTensors(t, open(t, src), open(t, sharded))
			requireSameTensors(t, open(t, src), open(t, converted(t, fused, Options{Experts: PerExpert})))
			require.Equal(t, readFile(t, src, configName), readFile(t, fused, configName))
		})
	}
}

// TestFusedIsTransformers: fused experts are what transformers 5 writes.
func TestFusedIsTransformers(t *testing.T) {
	want := fixtureOf("v3/checkpoint-fused")
	requireSameTensors(t, open(t, want), open(t, converted(t, fixtureOf("v3/checkpoint"), Options{Experts: FusedExperts})))
	requireSameTensors(t, open(t, want), open(t, converted(t, want, Options{})))
	requireSameTensors(t, open(t, fixtureOf("v3/checkpoint")), open(t, converted(t, want, Options{Experts: PerExpert})))
}

// TestDequantised: FP8 becomes what the reference makes of it, per expert or fused
// on the way, and the config no longer promises FP8.
func TestDequantised(t *testing.T) {
	src := fixtureOf("v3-fp8/checkpoint")
	direct := converted(t, src, Options{DType: tensor.BF16})
	by := converted(t, converted(t, src, Options{Experts: FusedExperts}), Options{DType: tensor.BF16, Experts: PerExpert})
	got := open(t, direct)
	requireSameTensors(t, got, open(t, by))
	require.NotContains(t, readFile(t, direct, configName), "quantization_config")
	data := readFile(t, fixtureOf("v3-fp8/dequantised-bf16"), "sample.safetensors")
	header, err := safetensors.ReadHeader(strings.NewReader(data), int64(len(data)), "sample")
	require.NoError(t, err)
	for info := range header.Tensors() {
		have, err := got.Tensor(info.Name)
		require.NoError(t, err)
		_, offset, _ := header.Lookup(info.Name)
		require.Equal(t, data[offset:offset+info.Bytes()], string(have.Data), info.Name)
	}
}

// TestCastThereAndBack: what F32 can hold comes back.
func TestCastThereAndBack(t *testing.T) {
	for name, d := range map[string]tensor.DType{"v3": tensor.BF16, "v1-top1-noshared": tensor.F16} {
		src := fixtureOf(name + "/checkpoint")
		wide := converted(t, src, Options{DType: tensor.F32})
		requireSameTensors(t, open(t, src), open(t, converted(t, wide, Options{DType: d})))
		require.Contains(t, readFile(t, wide, configName), `dtype": "float32"`)
		require.Equal(t, readFile(t, src, configName), readFile(t, converted(t, wide, Options{DType: d}), configName))
	}
}

// TestSameBytes: neither the number of processors, nor memory, nor the way to the
// disk, nor verification, nor the run decides about a byte; only the manifest knows
// whether it was verified.
func TestSameBytes(t *testing.T) {
	defer func(n int) { processors = n }(processors)
	for name, src := range map[string]string{"FP8": fixtureOf("v3-fp8/checkpoint"), "tiles": manyTiles(t)} {
		t.Run(name, func(t *testing.T) { requireSameBytes(t, src) })
	}
}

func requireSameBytes(t *testing.T, src string) {
	var want map[string][32]byte
	manifest := ""
	for _, processors = range []int{1, 2, 8} {
		for memory, disk := range map[int64]*disk{minMemory: {fail: refuseDirect}, 0: nil} {
			for _, noVerify := range []bool{false, true} {
				o := Options{DType: tensor.F16, AllowOverflow: true, Experts: FusedExperts, MaxShardBytes: 300_000, MaxMemory: memory, NoVerify: noVerify, disk: disk}
				dst := converted(t, src, o)
				if noVerify {
					remove(t, dst, manifestName)
					writeFile(t, dst, manifestName, manifest)
				}
				manifest = readFile(t, dst, manifestName)
				if want == nil {
					want = sums(t, dst)
				}
				require.Equal(t, want, sums(t, dst))
			}
		}
	}
}

// refuseDirect lets every file through the page cache.
func refuseDirect(call, _ string) error {
	if call == "direct" {
		return syscall.EINVAL
	}
	return nil
}

// crash lets a disk work until its n-th call; from then on nothing works, as if
// the machine had stopped.
func crash(n int64, err error) (*disk, *atomic.Int64) {
	var calls atomic.Int64
	return &disk{fail: func(call, path string) error {
		if calls.Add(1) > n {
			return err
		}
		return nil
	}}, &calls
}

var crashOptions = Options{DType: tensor.BF16, Experts: FusedExperts, MaxShardBytes: 600_000}

// TestResumeAfterCrash stops the disk at every call in turn. The same call goes on
// then, and ends with the same bytes.
func TestResumeAfterCrash(t *testing.T) {
	for name, src := range map[string]string{"FP8": fixtureOf("v3-fp8/checkpoint"), "tiles": manyTiles(t)} {
		for _, noVerify := range []bool{false, true} {
			o := crashOptions
			o.NoVerify = noVerify
			t.Run(fmt.Sprintf("%s, not verified %t", name, noVerify), func(t *testing.T) { requireResumes(t, open(t, src), o) })
		}
	}
}

func requireResumes(t *testing.T, src *Checkpoint, o Options) {
	var count *atomic.Int64
	o.disk, count = crash(1<<60, nil)
	dst := filepath.Join(t.TempDir(), "out")
	_, err := Run(t.Context(), dst, src, o)
	require.NoError(t, err)
	want, resumed := sums(t, dst), 0
	step := max(count.Load()/25, 1)
	for n := int64(0); n < count.Load(); n += step {
		resumed += crashAndResume(t, src, o, n, want)
	}
	require.Greater(t, resumed, 3, "runs that went on from something")
}

// crashAndResume crashes at call n, runs again and returns 1 if that took anything
// over.
func crashAndResume(t *testing.T, src *Checkpoint, o Options, n int64, want map[string][32]byte) int {
	dst := filepath.Join(t.TempDir(), "out")
	boom := errors.New("boom")
	o.disk, _ = crash(n, boom)
	_, err := Run(t.Context(), dst, src, o)
	require.ErrorIs(t, err, boom, "call %d", n)
	require.ErrorContains(t, err, filepath.Dir(dst))
	if _, err := os.Stat(dst); err == nil {
		requireChecked(t, dst) // only what came after the rename was lost
	}
	o.disk = nil
	r, err := Run(t.Context(), dst, src, o)
	require.NoError(t, err, "call %d", n)
	require.Equal(t, want, sums(t, dst), "call %d", n)
	requireEntries(t, filepath.Dir(dst), "out")
	if r.Resumed > 0 {
		return 1
	}
	return 0
}

// TestOneFault: one call fails, those after it work: the error names path and
// cause, nothing has the final name, and the same call ends well.
func TestOneFault(t *testing.T) {
	src := open(t, fixtureOf("v3-fp8/checkpoint"))
	want := sums(t, converted(t, fixtureOf("v3-fp8/checkpoint"), crashOptions))
	for _, call := range []string{"open", "fallocate", "direct", "write", "fsync", "close", "ftruncate", "mkdir", "rename"} {
		for _, cause := range []error{syscall.ENOSPC, syscall.EIO, syscall.EDQUOT} {
			for n := int64(1); n < 200; n = n*4 + 1 {
				dst := filepath.Join(t.TempDir(), "out")
				var calls atomic.Int64
				o := crashOptions
				o.disk = &disk{fail: func(c, _ string) error {
					if c == call && calls.Add(1) == n {
						return cause
					}
					return nil
				}}
				_, err := Run(t.Context(), dst, src, o)
				if calls.Load() < n {
					break
				}
				require.ErrorIs(t, err, cause, "%s %d", call, n)
				require.ErrorContains(t, err, filepath.Dir(dst))
				if _, err := os.Stat(dst); err == nil {
					requireChecked(t, dst)
				}
				o.disk = nil
				_, err = Run(t.Context(), dst, src, o)
				require.NoError(t, err)
				require.Equal(t, want, sums(t, dst))
			}
		}
	}
}

// TestResumeReadsNothingTwice: tensors that the journal has are not read again.
func TestResumeReadsNothingTwice(t *testing.T) {
	c := open(t, fixtureOf("v3-fp8/checkpoint"))
	dst := filepath.Join(t.TempDir(), "out")
	o := Options{NoVerify: true}.withDefaults()
	var stop atomic.Bool
	o.disk = &disk{fail: func(call, path string) error {
		if call == "write" && strings.HasSuffix(path, configName) {
			stop.Store(true)
		}
		if stop.Load() {
			return syscall.EIO
		}
		return nil
	}}
	_, err := Run(t.Context(), dst, c, o)
	require.ErrorIs(t, err, syscall.EIO)
	o.disk = &disk{}
	v, err := NewView(c)
	require.NoError(t, err)
	defer v.Close()
	plan, err := NewPlan(v, o)
	require.NoError(t, err)
	v.onRead = func(name string) { t.Errorf("%s is read", name) }
	r, err := run(t.Context(), dst, v, plan, o)
	require.NoError(t, err)
	require.Equal(t, r.Bytes, r.Resumed)
}

func TestInterruptedRunGoesOn(t *testing.T) {
	src := open(t, fixtureOf("v3/checkpoint"))
	dst := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(t.Context())
	o := Options{Progress: func(phase string, n, of int64) {
		if n > of/2 {
			cancel()
		}
	}}
	_, err := Run(ctx, dst, src, o)
	require.ErrorIs(t, err, context.Canceled)
	requireEntries(t, filepath.Dir(dst), ".out.journal", ".out.partial")
	_, err = Run(t.Context(), dst, src, Options{DType: tensor.F32})
	require.ErrorContains(t, err, "with other options")
	r, err := Run(t.Context(), dst, src, Options{})
	require.NoError(t, err)
	require.Positive(t, r.Resumed)
	require.Less(t, r.Resumed, r.Bytes)
	requireSameTensors(t, src, open(t, dst))
}

func TestNoResumeStartsOver(t *testing.T) {
	dir := clone(t, fixtureOf("v3/checkpoint"))
	src := open(t, dir)
	dst := filepath.Join(t.TempDir(), "out")
	o := Options{}
	o.disk, _ = crash(30, syscall.EIO)
	_, err := Run(t.Context(), dst, src, o)
	require.Error(t, err)
	stat, err := os.Stat(filepath.Join(dir, "model-00001-of-00007.safetensors"))
	require.NoError(t, err)
	require.NoError(t, os.Chtimes(filepath.Join(dir, stat.Name()), stat.ModTime(), stat.ModTime().Add(1)))
	_, err = Run(t.Context(), dst, src, Options{})
	require.ErrorContains(t, err, "which were changed since")
	r, err := Run(t.Context(), dst, src, Options{NoResume: true})
	require.NoError(t, err)
	require.Zero(t, r.Resumed)
	r, err = Run(t.Context(), dst, src, Options{})
	require.NoError(t, err)
	require.True(t, r.Already)
	_, err = Run(t.Context(), dst, src, Options{DType: tensor.F32})
	require.ErrorContains(t, err, "directory is not empty")
}

// TestForeignLeftovers: what no conversion wrote is never removed.
func TestForeignLeftovers(t *testing.T) {
	src := open(t, fixtureOf("v3/checkpoint"))
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".out.partial"), 0o755))
	writeFile(t, dir, ".out.partial/mine", "x")
	_, err := Run(t.Context(), filepath.Join(dir, "out"), src, Options{NoResume: true})
	require.ErrorContains(t, err, "no journal says that it was left by a conversion")
	require.Equal(t, "x", readFile(t, dir, ".out.partial/mine"))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, ".out.partial")))
	writeFile(t, dir, ".out.journal", "my diary")
	_, err = Run(t.Context(), filepath.Join(dir, "out"), src, Options{NoResume: true})
	require.ErrorContains(t, err, "is no journal")
	require.Equal(t, "my diary", readFile(t, dir, ".out.journal"))
}

func TestSecondRunIsRefused(t *testing.T) {
	src := open(t, fixtureOf("v3/checkpoint"))
	dst := filepath.Join(t.TempDir(), "out")
	var second error
	var once atomic.Bool
	_, err := Run(t.Context(), dst, src, Options{Progress: func(string, int64, int64) {
		if once.CompareAndSwap(false, true) {
			_, second = Run(context.Background(), dst, src, Options{})
		}
	}})
	require.NoError(t, err)
	require.ErrorIs(t, second, errBusy)
	requireSameTensors(t, src, open(t, dst))
}

func TestOverlapIsRefused(t *testing.T) {
	dir := clone(t, fixtureOf("v3/checkpoint"))
	src := open(t, dir)
	before := sums(t, dir)
	elsewhere := t.TempDir()
	link(t, dir, filepath.Join(elsewhere, "link"))
	for dst, want := range map[string]string{
		dir:                                         "is the source itself",
		filepath.Join(dir, "out"):                   "is inside the source",
		filepath.Join(dir, "a", "out"):              "is inside the source",
		filepath.Join(elsewhere, "link"):            "is the source itself",
		filepath.Join(elsewhere, "link", "out"):     "is inside the source",
		filepath.Dir(dir):                           "directory is not empty",
		filepath.Join(elsewhere, "no", "such"):      "does not exist",
		filepath.Join(dir, "..", "checkpoint", "x"): "is inside the source",
	} {
		_, err := Run(t.Context(), dst, src, Options{})
		require.ErrorContains(t, err, want, dst)
	}
	require.Equal(t, before, sums(t, dir))
}

// TestLossIsRefused: a value beyond F16's range and one below it.
func TestLossIsRefused(t *testing.T) {
	dir := clone(t, fixtureOf("v1-base/checkpoint"))
	poke(t, dir, embed, "\x80\x47\x01\x00\xc0\x7f") // BF16 65536, the least subnormal, NaN
	src := open(t, dir)
	dst := filepath.Join(t.TempDir(), "out")
	_, err := Run(t.Context(), dst, src, Options{DType: tensor.F16})
	var loss *LossError
	require.ErrorAs(t, err, &loss)
	var counts tensor.Loss
	for _, l := range loss.Tensors {
		counts.Add(l.Loss)
	}
	require.GreaterOrEqual(t, counts.Overflow, int64(1))
	require.GreaterOrEqual(t, counts.Flushed, int64(1))
	require.ErrorContains(t, err, embed)
	_, err = os.Stat(dst)
	require.ErrorIs(t, err, fs.ErrNotExist)
	r, err := Run(t.Context(), dst, src, Options{DType: tensor.F16, AllowOverflow: true})
	require.NoError(t, err)
	require.Equal(t, r.Bytes, r.Resumed)
	require.Equal(t, loss.Tensors, r.Lost)
	require.Contains(t, readFile(t, dst, manifestName), `"lost":{"overflow":1,"flushed":1}`)
}

// poke overwrites the first bytes of a tensor in a checkpoint's files.
func poke(t testing.TB, dir, name, data string) {
	t.Helper()
	c := open(t, dir)
	file := c.Inventory.Files[c.where[name]].Name
	_, offset, _ := c.files[c.where[name]].Lookup(name)
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte(data), offset)
	require.NoError(t, err)
}

// TestBitsSurvive: NaNs of any payload and −0 go through copies and fusing.
func TestBitsSurvive(t *testing.T) {
	dir := clone(t, fixtureOf("v3/checkpoint"))
	const odd = "\x81\x7f\xff\xff\x00\x80\x80\xff\x01\x00"
	expert := "model.layers.3.mlp.experts.5.up_proj.weight"
	poke(t, dir, embed, odd)
	poke(t, dir, expert, odd)
	out := converted(t, converted(t, dir, Options{Experts: FusedExperts}), Options{Experts: PerExpert, MaxShardBytes: 1 << 18})
	requireSameTensors(t, open(t, dir), open(t, out))
	wide := open(t, converted(t, dir, Options{DType: tensor.F32}))
	got, err := wide.Tensor(expert)
	require.NoError(t, err)
	require.Equal(t, "\x00\x00\x81\x7f\x00\x00\xff\xff\x00\x00\x00\x80\x00\x00\x80\xff\x00\x00\x01\x00", string(got.Data[:20]))
}

// TestProofFindsEveryChange writes, changes one byte on disk, and proves.
func TestProofFindsEveryChange(t *testing.T) {
	for _, src := range []string{fixtureOf("v3-fp8/checkpoint"), manyTiles(t)} {
		for _, o := range []Options{{}, {Experts: FusedExperts}, {DType: tensor.BF16}, {DType: tensor.F32}} {
			t.Run(fmt.Sprintf("%s to %s %s", filepath.Base(filepath.Dir(src)), o.Experts.String(), o.DType), func(t *testing.T) { requireProof(t, open(t, src), o) })
		}
	}
}

func requireProof(t *testing.T, c *Checkpoint, o Options) {
	v, err := NewView(c)
	require.NoError(t, err)
	defer v.Close()
	o = o.withDefaults()
	plan, err := NewPlan(v, o)
	require.NoError(t, err)
	dst := filepath.Join(t.TempDir(), "out")
	e := &execution{plan: plan, view: v, o: o, dir: partialName(dst), pool: lanes.NewPool(processors), changed: map[int]bool{}}
	e.budget()
	require.NoError(t, e.begin(dst))
	defer e.close()
	require.NoError(t, e.write(t.Context()))
	for i := range plan.Tensors {
		at := plan.Tensors[i].Offset + plan.Tensors[i].Bytes()/2
		flip(t, e.files[plan.Tensors[i].File].File, at)
		err := e.proveTensor(t.Context(), e.newWorker(), i)
		require.ErrorContains(t, err, "but the source gives", "%s", plan.Tensors[i].Name)
		require.Zero(t, e.states[i].done)
		flip(t, e.files[plan.Tensors[i].File].File, at)
	}
	require.NoError(t, e.prove(t.Context()))
}

// flip changes the bits of a byte by which a value becomes clearly another.
func flip(t testing.TB, f *os.File, at int64) {
	t.Helper()
	var b [1]byte
	_, err := f.ReadAt(b[:], at)
	require.NoError(t, err)
	b[0] ^= 0xff
	_, err = f.WriteAt(b[:], at)
	require.NoError(t, err)
}

// TestCheckNamesWhatChanged flips single bits all over a converted checkpoint.
func TestCheckNamesWhatChanged(t *testing.T) {
	dst := converted(t, fixtureOf("v3/checkpoint"), Options{MaxShardBytes: 300_000, Experts: FusedExperts})
	c := open(t, dst)
	for i, f := range c.Inventory.Files {
		for j := range 20 {
			at := f.Size * int64(2*j+1) / 40
			name := filepath.Join(dst, f.Name)
			file, err := os.OpenFile(name, os.O_RDWR, 0)
			require.NoError(t, err)
			flip(t, file, at)
			r, err := Check(t.Context(), dst, nil)
			require.NoError(t, err)
			require.Len(t, r.Problems, 1)
			require.Equal(t, f.Name, r.Problems[0].File)
			header := at < c.files[i].(*safetensors.File).DataStart
			require.Equal(t, header, r.Problems[0].Tensor == "", r.Problems[0])
			flip(t, file, at)
			file.Close()
		}
	}
	replace(t, dst, configName, "deepseek_v3", "deepseek_v2")
	remove(t, dst, "generation_config.json")
	writeFile(t, dst, "model-9.safetensors", "")
	r, err := Check(t.Context(), dst, nil)
	require.NoError(t, err)
	require.Len(t, r.Problems, 3)
	_, err = Check(t.Context(), fixtureOf("v3/checkpoint"), nil)
	require.ErrorContains(t, err, manifestName)
}

// TestSourceChangedOnTheWay: a carried file that is no longer what was planned.
func TestSourceChangedOnTheWay(t *testing.T) {
	dir := clone(t, fixtureOf("v3/checkpoint"))
	src := open(t, dir)
	dst := filepath.Join(t.TempDir(), "out")
	_, err := Run(t.Context(), dst, src, Options{Progress: func(string, int64, int64) { writeFile(t, dir, "generation_config.json", "{}") }})
	require.ErrorContains(t, err, "changed while the conversion ran")
	_, err = os.Stat(dst)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestShortenedSource(t *testing.T) {
	dir := clone(t, fixtureOf("v3/checkpoint"))
	src := open(t, dir)
	v, err := NewView(src)
	require.NoError(t, err)
	defer v.Close()
	require.NoError(t, os.Truncate(filepath.Join(dir, "model-00003-of-00007.safetensors"), 90_000))
	_, err = Run(t.Context(), filepath.Join(t.TempDir(), "out"), src, Options{})
	require.ErrorContains(t, err, "unexpected EOF")
	require.ErrorContains(t, err, "model-00003-of-00007.safetensors")
}

func TestPlanHashFollowsEverything(t *testing.T) {
	v, err := NewView(open(t, fixtureOf("v3/checkpoint")))
	require.NoError(t, err)
	defer v.Close()
	seen := map[string]string{}
	for name, o := range map[string]Options{
		"default": {}, "shards": {MaxShardBytes: 100_000}, "fused": {Experts: FusedExperts}, "f32": {DType: tensor.F32}, "f16": {DType: tensor.F16},
		"layers": {Layers: Layers{{0, 2}}}, "exclude": {Exclude: []string{"*.mlp.*"}},
	} {
		p, err := NewPlan(v, o)
		require.NoError(t, err)
		again, err := NewPlan(v, o)
		require.NoError(t, err)
		require.Equal(t, p.Hash, again.Hash)
		require.Empty(t, seen[p.Hash], name)
		seen[p.Hash] = name
		same := o
		same.MaxMemory, same.NoVerify, same.AllowOverflow = 128<<20, true, true
		again, err = NewPlan(v, same)
		require.NoError(t, err)
		require.Equal(t, p.Hash, again.Hash)
	}
}
