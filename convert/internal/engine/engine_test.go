package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/internal/output"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// inMemory are settings for tests that are not about what a crash leaves: nothing is
// synced.
func inMemory() Settings { return Settings{Disk: &disk.Disk{NoSync: true}} }

// manyTiles writes a checkpoint some of whose tensors are several tiles, none of them
// whole, in BF16.
func manyTiles(t testing.TB) string {
	document := strings.Replace(fixture.Read(t, fixture.Path(t, "v1-dense/checkpoint"), checkpoint.ConfigName), `"vocab_size": 256`, `"vocab_size": 10007`, 1)
	return synthesised(t, document).Path
}

func open(t testing.TB, path string) *checkpoint.Checkpoint {
	t.Helper()
	c, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// convert runs the conversion of src into dst.
func convert(ctx context.Context, t testing.TB, dst string, src *checkpoint.Checkpoint, o plan.Options, s Settings) (*Result, error) {
	t.Helper()
	p, err := plan.Conversion(src, o)
	require.NoError(t, err)
	return Run(ctx, dst, p, src, s)
}

// begun is a run that has begun to write a plan's output to dst, and is closed with the test.
func begun(t testing.TB, dst string, p *plan.Plan, src Source, s Settings) *execution {
	t.Helper()
	s = s.withDefaults()
	to, err := output.TargetOf(dst, p, s.Client)
	require.NoError(t, err)
	e, err := newExecution(to, p, src, s)
	require.NoError(t, err)
	_, err = e.begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(e.out.Close)
	return e
}

// beside is the hidden name beside a target that an unfinished or a replaced output has.
func beside(dst, kind string) string {
	return filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+"."+kind)
}

func present(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// converted converts the checkpoint at src into a new directory.
func converted(t testing.TB, src string, o plan.Options, s Settings) string {
	t.Helper()
	dst := filepath.Join(t.TempDir(), "out")
	_, err := convert(t.Context(), t, dst, open(t, src), o, s)
	require.NoError(t, err)
	requireChecked(t, dst)
	fixture.RequireEntries(t, filepath.Dir(dst), "out")
	return dst
}

// requireChecked demands that a directory fits its manifest.
func requireChecked(t testing.TB, dst string) {
	t.Helper()
	checked, err := Check(t.Context(), dst, Settings{})
	require.NoError(t, err)
	require.Empty(t, checked.Problems)
}

// TestSameBytes_every: neither the number of goroutines, nor memory, nor verification, nor the run
// decides about a byte; only the manifest knows whether it was verified.
func TestSameBytes_every(t *testing.T) {
	t.Parallel()
	for name, src := range map[string]string{"FP8": fixture.Path(t, "v3-fp8/checkpoint"), "tiles": manyTiles(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireSameBytes(t, src)
		})
	}
}

func requireSameBytes(t *testing.T, src string) {
	o := plan.Options{DType: tensor.F16, Experts: plan.FusedExperts, MaxShardBytes: 300_000}
	var want map[string][32]byte
	manifest := ""
	for _, goroutines := range []int{1, 2, 8} {
		for _, memory := range []int64{0, minMemory} {
			for _, unverified := range []bool{false, true} {
				if !configtest.Every(t) && (unverified != (goroutines == 2) || (memory == 0) != (goroutines == 1)) {
					continue
				}
				s := Settings{Memory: memory, Compute: goroutines, IO: goroutines, AllowOverflow: true, Unverified: unverified, Disk: &disk.Disk{NoSync: true}}
				dst := converted(t, src, o, s)
				if unverified {
					fixture.Write(t, dst, plan.ManifestName, manifest)
				}
				manifest = fixture.Read(t, dst, plan.ManifestName)
				if want == nil {
					want = fixture.Sums(t, dst)
				}
				require.Equal(t, want, fixture.Sums(t, dst))
			}
		}
	}
}

// TestProvesWhileItWrites: a tensor is proven before the next one is written.
func TestProvesWhileItWrites(t *testing.T) {
	t.Parallel()
	var done []int64
	s := inMemory()
	s.IO = 1
	s.Progress = func(phase string, n, _ int64) {
		if phase == "converting" {
			done = append(done, n)
		}
	}
	converted(t, fixture.Path(t, "v1-dense/checkpoint"), newer, s)
	require.Equal(t, 2*done[0], done[1], "of the first tensor are written %d bytes", done[0])
}

// refuseDirect lets every file through the page cache.
func refuseDirect(call, _ string) error {
	if call == "direct" {
		return syscall.EINVAL
	}
	return nil
}

// crash lets a disk work until its n-th call; from then on nothing works, as if
// the machine had stopped. Tiles of parts go through the page cache, too, which is quicker here.
func crash(n int64, err error) (*disk.Disk, *atomic.Int64) {
	var calls atomic.Int64
	return &disk.Disk{NoSync: true, Fail: func(call, path string) error {
		if calls.Add(1) > n {
			return err
		}
		return refuseDirect(call, path)
	}}, &calls
}

// crashOptions leave few tensors, so that every call can be the one at which a run ends:
// copied, cast, dequantised and fused ones, in several shards.
var crashOptions = plan.Options{DType: tensor.BF16, Experts: plan.FusedExperts, MaxShardBytes: 250_000,
	Layers: plan.Layers{{0, 1}}, Exclude: []string{"*.mlp.down_proj.weight"}}

// crashStep returns how many calls of a run lie between two crashes, if a plain test crashes it some times.
func crashStep(t *testing.T, calls, times int64) int64 {
	if configtest.Every(t) {
		return 1
	}
	return max(calls/times, 1)
}

// TestResumeAfterCrash_every stops the disk at calls all along a run. The same call goes on
// then, and ends with the same bytes.
func TestResumeAfterCrash_every(t *testing.T) {
	t.Parallel()
	for name, src := range map[string]string{"FP8": fixture.Path(t, "v3-fp8/checkpoint"), "tiles": manyTiles(t)} {
		for _, unverified := range []bool{false, true} {
			for _, place := range []string{"beside", "inside"} {
				if !configtest.Every(t) && ((name == "FP8") == unverified || (place == "inside") != unverified) {
					continue
				}
				t.Run(fmt.Sprintf("%s, not verified %t, %s the target", name, unverified, place), func(t *testing.T) {
					t.Parallel()
					requireResumes(t, open(t, src), unverified, place)
				})
			}
		}
	}
}

// targetPath returns a target that is not there, or with place "inside" an empty directory.
func targetPath(t *testing.T, place string) string {
	dst := filepath.Join(t.TempDir(), "out")
	if place == "inside" {
		require.NoError(t, os.Mkdir(dst, 0o755))
	}
	return dst
}

func requireResumes(t *testing.T, src *checkpoint.Checkpoint, unverified bool, place string) {
	d, count := crash(1<<60, nil)
	dst, p := targetPath(t, place), planned(t, src, crashOptions)
	_, err := Run(t.Context(), dst, p, src, Settings{Disk: d, Unverified: unverified, IO: 2})
	require.NoError(t, err)
	want, resumed := fixture.Sums(t, dst), 0
	n := int64(0)
	for crashed := true; crashed; n += crashStep(t, count.Load(), 8) {
		var took bool
		if crashed, took = crashAndResume(t, p, src, unverified, place, n, want); took {
			resumed++
		}
	}
	require.Greater(t, n, count.Load()/2, "calls before which a run crashed: some runs do with fewer than others")
	least := 1
	if configtest.Every(t) {
		least = 3
	}
	require.GreaterOrEqual(t, resumed, least, "runs that went on from something")
}

// crashAndResume crashes before call n, if a run makes as many, and runs again. It says
// whether it crashed, and whether the second run took anything over.
func crashAndResume(t *testing.T, p *plan.Plan, src *checkpoint.Checkpoint, unverified bool, place string, n int64, want map[string][32]byte) (crashed, took bool) {
	dst := targetPath(t, place)
	boom := errors.New("boom")
	s := Settings{Unverified: unverified, IO: 2}
	s.Disk, _ = crash(n, boom)
	_, err := Run(t.Context(), dst, p, src, s)
	if crashed = err != nil; crashed {
		require.ErrorIs(t, err, boom, "call %d", n)
		require.ErrorContains(t, err, filepath.Dir(dst))
	}
	if c, err := checkpoint.Open(dst); err == nil {
		c.Close()
		requireChecked(t, dst) // only what came after the last rename was lost
	}
	s.Disk = &disk.Disk{NoSync: true}
	r, err := Run(t.Context(), dst, p, src, s)
	require.NoError(t, err, "call %d", n)
	require.Equal(t, want, fixture.Sums(t, dst), "call %d", n)
	fixture.RequireEntries(t, filepath.Dir(dst), "out")
	return crashed, r.Resumed > 0
}

// TestOneFault_every: one call fails, those after it work: the error names path and
// cause, nothing has the final name, and the same call ends well.
func TestOneFault_every(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	p, want := planned(t, src, crashOptions), fixture.Sums(t, converted(t, src.Path, crashOptions, inMemory()))
	for _, call := range []string{"open", "fallocate", "write", "fsync", "close", "ftruncate", "mkdir", "rename"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			causes := []error{syscall.ENOSPC, syscall.EIO, syscall.EDQUOT}
			for n, turn := int64(1), 0; ; n, turn = n*4+1, turn+1 {
				if turn == 2 && !configtest.Every(t) {
					return
				}
				some := causes[turn%3:][:1]
				if configtest.Every(t) {
					some = causes
				}
				for _, cause := range some {
					if !requireOneFault(t, p, src, call, cause, n, want) {
						return
					}
				}
			}
		})
	}
}

// requireOneFault lets the n-th call of a kind fail; false if there is no such call.
func requireOneFault(t *testing.T, p *plan.Plan, src *checkpoint.Checkpoint, call string, cause error, n int64, want map[string][32]byte) bool {
	dst := filepath.Join(t.TempDir(), "out")
	var calls atomic.Int64
	_, err := Run(t.Context(), dst, p, src, Settings{Disk: &disk.Disk{NoSync: true, Fail: func(c, _ string) error {
		if c == call && calls.Add(1) == n {
			return cause
		}
		return nil
	}}})
	if calls.Load() < n {
		return false
	}
	require.ErrorIs(t, err, cause, "%s %d", call, n)
	require.ErrorContains(t, err, filepath.Dir(dst))
	if _, err := os.Stat(dst); err == nil {
		requireChecked(t, dst)
	}
	_, err = Run(t.Context(), dst, p, src, inMemory())
	require.NoError(t, err)
	require.Equal(t, want, fixture.Sums(t, dst))
	return true
}

// TestWhatIsNamedIsDurable: every file is synced behind the last write to it, and the directory
// after them, before the output gets its name; the directory that the name is in follows.
func TestWhatIsNamedIsDurable(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	for _, place := range []string{"beside", "inside"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var calls []string // "fsync PATH", "rename NEW PATH"
			dst := targetPath(t, place)
			_, err := convert(t.Context(), t, dst, src, crashOptions, Settings{Disk: &disk.Disk{NoSync: true, Fail: func(call, path string) error {
				mu.Lock()
				defer mu.Unlock()
				if call == "fsync" || call == "rename" || call == "write" {
					calls = append(calls, call+" "+path)
				}
				return nil
			}}})
			require.NoError(t, err)
			files, err := os.ReadDir(dst)
			require.NoError(t, err)
			named := dst // by the first rename: the output, or the first of its files
			if place == "inside" {
				named = strings.TrimPrefix(calls[slices.IndexFunc(calls, func(c string) bool { return strings.HasPrefix(c, "rename "+dst) })], "rename ")
			}
			before, after, found := cut(calls, "rename "+named)
			require.True(t, found, "%q", calls)
			hidden := ""
			for _, f := range files {
				last := slices.IndexFunc(before, func(c string) bool { return strings.HasPrefix(c, "write ") && filepath.Base(c) == f.Name() })
				require.GreaterOrEqual(t, last, 0, "%s is not written before the rename", f.Name())
				path := strings.TrimPrefix(before[last], "write ")
				for i, c := range before {
					if c == "write "+path {
						last = i
					}
				}
				require.Contains(t, before[last:], "fsync "+path, "behind the last write")
				hidden = filepath.Dir(path)
			}
			last := slices.Index(before, "fsync "+filepath.Join(hidden, "model.safetensors.index.json"))
			require.Contains(t, before[last:], "fsync "+hidden, "the directory is synced behind the last file")
			require.Contains(t, after, "fsync "+filepath.Dir(named))
		})
	}
}

// cut returns what stands before and behind an element of a list.
func cut(list []string, at string) (before, after []string, found bool) {
	i := slices.Index(list, at)
	if i < 0 {
		return list, nil, false
	}
	return list[:i], list[i+1:], true
}

// counted is a source that counts the bytes that are read.
type counted struct {
	*checkpoint.Checkpoint
	reads atomic.Int64 // bytes
	calls atomic.Int64
}

// ReadFile counts and reads.
func (c *counted) ReadFile(file int, dst []byte, offset int64) error {
	c.reads.Add(int64(len(dst)))
	c.calls.Add(1)
	return c.Checkpoint.ReadFile(file, dst, offset)
}

// TestTransposedHeadsTakeFewReads: GGUF's attn_k_b has the elements of kv_b_proj in another order, those of a piece far apart.
// They come from few reads of the disk, too.
func TestTransposedHeadsTakeFewReads(t *testing.T) {
	t.Parallel()
	document := likeV3(t, map[string]string{"hidden_size": "128", "intermediate_size": "128", "moe_intermediate_size": "128",
		"num_attention_heads": "8", "num_key_value_heads": "8", "q_lora_rank": "128", "n_routed_experts": "16", "vocab_size": "99",
		"num_hidden_layers": "2", "first_k_dense_replace": "1", "num_nextn_predict_layers": "0"})
	c := synthesised(t, document)
	for _, o := range []plan.Options{{}, {DType: tensor.BF16}, {Mixture: "q8_0"}} {
		src := &counted{Checkpoint: c}
		o.NoVocab = true
		p := planned(t, src.Checkpoint, o.Into("m.gguf"))
		_, err := Run(t.Context(), filepath.Join(t.TempDir(), "m.gguf"), p, src, inMemory())
		require.NoError(t, err)
		require.Less(t, src.calls.Load(), int64(20*len(p.Tensors)))
	}
}

// TestResumeReadsNothingTwice: tensors that the journal has are not read again; those of a server not even to
// be proven.
func TestResumeReadsNothingTwice(t *testing.T) {
	t.Parallel()
	for _, s := range []Settings{{Unverified: true}, {Origin: "https://host/dir"}} {
		resumeReadsNothing(t, s)
	}
}

func resumeReadsNothing(t *testing.T, s Settings) {
	src := &counted{Checkpoint: open(t, fixture.Path(t, "v3-fp8/checkpoint"))}
	p, err := plan.Conversion(src.Checkpoint, plan.Options{})
	require.NoError(t, err)
	dst := filepath.Join(t.TempDir(), "out")
	var stop atomic.Bool
	s.Disk = &disk.Disk{Fail: func(call, path string) error {
		if call == "write" && strings.HasSuffix(path, checkpoint.ConfigName) {
			stop.Store(true)
		}
		if stop.Load() {
			return syscall.EIO
		}
		return nil
	}}
	_, err = Run(t.Context(), dst, p, src, s)
	require.ErrorIs(t, err, syscall.EIO)
	require.Positive(t, src.reads.Swap(0))
	s.Disk = nil
	r, err := Run(t.Context(), dst, p, src, s)
	require.NoError(t, err)
	require.Zero(t, src.reads.Load())
	_, out := p.Bytes()
	require.Equal(t, out, r.Resumed)
}

// ranges is a source that counts how often each byte of a file is read.
type ranges struct {
	*checkpoint.Checkpoint
	mu    sync.Mutex
	times [][]int
}

// ReadFile counts and reads.
func (r *ranges) ReadFile(file int, dst []byte, offset int64) error {
	r.mu.Lock()
	for i := range dst {
		r.times[file][offset+int64(i)]++
	}
	r.mu.Unlock()
	return r.Checkpoint.ReadFile(file, dst, offset)
}

// TestServersAreReadOnce: with an Origin each byte of each tensor but scales is read once, the proof included, but
// for one that views divide among several; and the output is what it is without.
func TestServersAreReadOnce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fixture string
		o       plan.Options
	}{
		{"v3-fp8", plan.Options{}},
		{"v3-fp8", plan.Options{DType: tensor.BF16, Experts: plan.FusedExperts}},
		{"v2-lite", plan.Options{Format: "gguf", NoVocab: true, Name: "x", DType: tensor.F16}},
		{"v2-lite", plan.Options{Format: "gguf", NoVocab: true, Name: "x", Mixture: "q8_0"}},
		{"v2-lite", plan.Options{Format: "gguf", NoVocab: true, Name: "x"}},
	} {
		path := fixture.Path(t, test.fixture+"/checkpoint")
		src := &ranges{Checkpoint: open(t, path)}
		for _, f := range src.Inventory.Files {
			src.times = append(src.times, make([]int, f.Size))
		}
		p, err := plan.Conversion(src.Checkpoint, test.o)
		require.NoError(t, err)
		dst := filepath.Join(t.TempDir(), "out")
		s := inMemory()
		s.Origin = "https://host/dir"
		r, err := Run(t.Context(), dst, p, src, s)
		require.NoError(t, err)
		require.True(t, r.Verified)
		requireChecked(t, dst)
		for info := range src.Tensors() {
			file, offset, err := src.Place(info.Name)
			require.NoError(t, err)
			if tensor.OwnerOf(info.Name) != info.Name {
				continue
			}
			most := 0
			for i := range p.Tensors {
				for _, g := range p.Tensors[i].Segments {
					if g.Tensor == info.Name && (most == 0 || g.View != nil) {
						most++
					}
				}
			}
			require.LessOrEqual(t, slices.Max(src.times[file][offset:offset+info.Bytes()]), most, info.Name)
		}
		want, got := fixture.Sums(t, converted(t, path, test.o, inMemory())), fixture.Sums(t, dst)
		delete(want, plan.ManifestName)
		delete(got, plan.ManifestName)
		require.Equal(t, want, got)
	}
}

// TestServersAreReadOnceInTwoRuns: after an interruption in the middle of tensors their tiles are not read again,
// but for those of the segment in work; if they are what was written.
func TestServersAreReadOnceInTwoRuns(t *testing.T) {
	t.Parallel()
	src := &counted{Checkpoint: open(t, manyTiles(t))}
	for _, o := range []plan.Options{{}, {DType: tensor.F32}} {
		for _, damage := range []bool{false, true} {
			p, err := plan.Conversion(src.Checkpoint, o)
			require.NoError(t, err)
			want := converted(t, src.Path, o, inMemory())
			dst := filepath.Join(t.TempDir(), "out")
			ctx, cancel := context.WithCancel(t.Context())
			s := inMemory()
			s.Origin, s.IO = "https://host/dir", 1
			s.Progress = func(_ string, n, of int64) {
				if n > of/20 {
					cancel()
				}
			}
			_, err = Run(ctx, dst, p, src, s)
			require.ErrorIs(t, err, context.Canceled)
			if damage {
				fixture.Flip(t, filepath.Join(filepath.Dir(dst), ".out.partial", p.Files[0].Name), p.Tensors[largest(p)].Offset+3)
			}
			s.Progress = nil
			src.reads.Store(0)
			r, err := Run(t.Context(), dst, p, src, s)
			require.NoError(t, err)
			require.Positive(t, r.Resumed)
			if _, all := p.Bytes(); o.DType == tensor.Invalid && !damage {
				require.Equal(t, all-r.Resumed, src.reads.Load())
			}
			requireChecked(t, dst)
			a, b := fixture.Sums(t, want), fixture.Sums(t, dst)
			delete(a, plan.ManifestName)
			delete(b, plan.ManifestName)
			require.Equal(t, a, b)
		}
	}
}

// largest is the index of the plan's largest tensor, which is written first.
func largest(p *plan.Plan) (most int) {
	for i := range p.Tensors {
		if p.Tensors[i].Bytes() > p.Tensors[most].Bytes() {
			most = i
		}
	}
	return most
}

// TestInterruptedRunGoesOn: what was done before the interruption is taken over.
func TestInterruptedRunGoesOn(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3/checkpoint"))
	dst := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := convert(ctx, t, dst, src, plan.Options{}, Settings{Progress: func(phase string, n, of int64) {
		if n > of/4 {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
	fixture.RequireEntries(t, filepath.Dir(dst), ".out.journal", ".out.partial")
	_, err = convert(t.Context(), t, dst, src, plan.Options{DType: tensor.F32}, Settings{})
	require.ErrorContains(t, err, "with other options")
	r, err := convert(t.Context(), t, dst, src, plan.Options{}, Settings{})
	require.NoError(t, err)
	require.Positive(t, r.Resumed)
	require.Less(t, r.Resumed, int64(912640))
	fixture.RequireSameTensors(t, src, open(t, dst))
}

func TestStartOver(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v3/checkpoint"))
	src := open(t, dir)
	dst := filepath.Join(t.TempDir(), "out")
	var s Settings
	s.Disk, _ = crash(30, syscall.EIO)
	_, err := convert(t.Context(), t, dst, src, plan.Options{}, s)
	require.Error(t, err)
	stat, err := os.Stat(filepath.Join(dir, "model-00001-of-00007.safetensors"))
	require.NoError(t, err)
	require.NoError(t, os.Chtimes(filepath.Join(dir, stat.Name()), stat.ModTime(), stat.ModTime().Add(1)))
	_, err = convert(t.Context(), t, dst, src, plan.Options{}, Settings{})
	require.ErrorContains(t, err, "which were changed since")
	r, err := convert(t.Context(), t, dst, src, plan.Options{}, Settings{StartOver: true})
	require.NoError(t, err)
	require.Zero(t, r.Resumed)
	r, err = convert(t.Context(), t, dst, src, plan.Options{}, Settings{})
	require.NoError(t, err)
	require.True(t, r.Already)
	_, err = convert(t.Context(), t, dst, src, plan.Options{DType: tensor.F32}, Settings{})
	require.ErrorContains(t, err, "directory is not empty: it holds the finished output of another conversion")
}

// TestForeignLeftovers: what no run wrote is never removed.
func TestForeignLeftovers(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3/checkpoint"))
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".out.partial"), 0o755))
	fixture.Write(t, dir, ".out.partial/mine", "x")
	_, err := convert(t.Context(), t, filepath.Join(dir, "out"), src, plan.Options{}, Settings{StartOver: true})
	require.ErrorContains(t, err, "no journal says that a conversion left it")
	require.Equal(t, "x", fixture.Read(t, dir, ".out.partial/mine"))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, ".out.partial")))
	fixture.Write(t, dir, ".out.journal", "my diary")
	_, err = convert(t.Context(), t, filepath.Join(dir, "out"), src, plan.Options{}, Settings{StartOver: true})
	require.ErrorContains(t, err, "is not a journal")
	require.Equal(t, "my diary", fixture.Read(t, dir, ".out.journal"))
}

// TestJournalBesideAFinishedOutput: of the journals that may lie there, only one of the same
// plan, or one that never began, goes. What another plan's run left can be gone on with.
func TestJournalBesideAFinishedOutput(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	dst := converted(t, src.Path, plan.Options{}, inMemory())
	parent := filepath.Dir(dst)
	again := func(o plan.Options, s Settings) *Result {
		t.Helper()
		r, err := convert(t.Context(), t, dst, src, o, s)
		require.NoError(t, err)
		return r
	}
	fixture.Write(t, parent, ".out.journal", "my diary")
	require.True(t, again(plan.Options{}, inMemory()).Already)
	require.Equal(t, "my diary", fixture.Read(t, parent, ".out.journal"))
	fixture.Write(t, parent, ".out.journal", "")
	require.True(t, again(plan.Options{}, inMemory()).Already)
	fixture.RequireEntries(t, parent, "out")

	overwrite := inMemory()
	overwrite.Overwrite = true
	crashing := overwrite
	crashing.Disk, _ = crash(20, syscall.EIO)
	_, err := convert(t.Context(), t, dst, src, older, crashing)
	require.ErrorIs(t, err, syscall.EIO)
	fixture.RequireEntries(t, parent, ".out.journal", ".out.partial", "out")
	require.True(t, again(plan.Options{}, inMemory()).Already)
	fixture.RequireEntries(t, parent, ".out.journal", ".out.partial", "out")
	require.True(t, again(older, overwrite).Replaced)
	fixture.RequireEntries(t, parent, "out")
}

func TestSecondRunIsRefused(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3/checkpoint"))
	dst := filepath.Join(t.TempDir(), "out")
	var second error
	var once atomic.Bool
	_, err := convert(t.Context(), t, dst, src, plan.Options{}, Settings{Progress: func(string, int64, int64) {
		if once.CompareAndSwap(false, true) {
			_, second = convert(context.Background(), t, dst, src, plan.Options{}, Settings{})
		}
	}})
	require.NoError(t, err)
	require.ErrorIs(t, second, progress.ErrBusy)
	fixture.RequireSameTensors(t, src, open(t, dst))
}

// TestTargets: what may be in the target's place, and what not.
func TestTargets(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	parent := t.TempDir()
	fixture.Write(t, parent, "file", "kept")
	for _, dir := range []string{"full/sub", "empty"} {
		require.NoError(t, os.MkdirAll(filepath.Join(parent, dir), 0o755))
	}
	fixture.Link(t, "empty", filepath.Join(parent, "link"))
	fixture.Link(t, "none", filepath.Join(parent, "nowhere"))
	for name, want := range map[string]string{
		"full": "directory is not empty: it holds sub", "file": "exists and is not", "none/out": "does not exist",
		"nowhere": "is a link to a place that does not exist",
	} {
		_, err := convert(t.Context(), t, filepath.Join(parent, name), src, plan.Options{}, inMemory())
		require.ErrorContains(t, err, want)
	}
	fixture.RequireEntries(t, parent, "empty", "file", "full", "link", "nowhere")
}

// TestEmptyDirectoryIsFilled: a directory that is there stays the same one, with its mode,
// also behind a link, where its parent cannot be written to, and where a new file system
// has its own directory.
func TestEmptyDirectoryIsFilled(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3/checkpoint"))
	parent := t.TempDir()
	dir, link := filepath.Join(parent, "dir"), filepath.Join(parent, "link")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "lost+found"), 0o755))
	require.NoError(t, os.Chmod(dir, 0o2750))
	fixture.Link(t, "dir", link)
	before, err := os.Stat(dir)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(parent, 0o555))
	t.Cleanup(func() { os.Chmod(parent, 0o755) })
	_, err = convert(t.Context(), t, link, src, plan.Options{MaxShardBytes: 300_000}, inMemory())
	require.NoError(t, err)
	after, err := os.Stat(dir)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.Equal(t, before.Mode(), after.Mode())
	require.NoError(t, os.Remove(filepath.Join(dir, "lost+found")))
	require.Equal(t, fixture.Sums(t, converted(t, src.Path, plan.Options{MaxShardBytes: 300_000}, inMemory())), fixture.Sums(t, dir))
	requireChecked(t, dir)
}

// TestInterruptedNamesWhatItLeaves: the directory, its bytes on disk, and whether the next run
// continues it, which a run that makes a finished output anew cannot.
func TestInterruptedNamesWhatItLeaves(t *testing.T) {
	t.Parallel()
	dst := filepath.Join(t.TempDir(), "out")
	for _, startOver := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		s := inMemory()
		s.StartOver = startOver
		s.Progress = func(phase string, _, _ int64) {
			if phase == "converting" {
				cancel()
			}
		}
		_, err := convert(ctx, t, dst, open(t, fixture.Path(t, "v1-dense/checkpoint")), plan.Options{}, s)
		var left *Interrupted
		require.ErrorAs(t, err, &left)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, beside(dst, "partial"), left.Dir)
		require.Greater(t, left.Bytes, int64(100_000))
		require.Equal(t, startOver, left.Restart)
		r, err := convert(t.Context(), t, dst, open(t, fixture.Path(t, "v1-dense/checkpoint")), plan.Options{}, inMemory())
		require.NoError(t, err)
		require.Equal(t, startOver, r.Already)
		fixture.RequireEntries(t, filepath.Dir(dst), "out")
	}
}

// TestStartOverWhileFilling: files that an interrupted run has moved into the target are
// its own, and nobody else's.
func TestStartOverWhileFilling(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3/checkpoint"))
	dst := t.TempDir()
	renames := 0
	s := Settings{Disk: &disk.Disk{NoSync: true, Fail: func(call, _ string) error {
		if call == "rename" {
			renames++
		}
		if renames > 2 {
			return syscall.EIO
		}
		return nil
	}}}
	_, err := convert(t.Context(), t, dst, src, plan.Options{}, s)
	require.ErrorIs(t, err, syscall.EIO)
	fixture.RequireEntries(t, dst, ".dsmoe.journal", ".dsmoe.partial", "generation_config.json", "model.safetensors")
	_, err = checkpoint.Open(dst)
	require.Error(t, err)
	waiting := ".dsmoe.partial/" + checkpoint.ConfigName
	config := fixture.Read(t, dst, waiting)
	fixture.Remove(t, dst, waiting)
	_, err = convert(t.Context(), t, dst, src, plan.Options{}, inMemory())
	require.ErrorIs(t, err, fs.ErrNotExist, "a file that is neither there nor here")
	fixture.Write(t, dst, waiting, config)
	other := plan.Options{DType: tensor.F32}
	_, err = convert(t.Context(), t, dst, src, other, inMemory())
	require.ErrorContains(t, err, "an unfinished conversion with other options")
	fixture.Write(t, dst, "mine", "x")
	_, err = convert(t.Context(), t, dst, src, other, Settings{StartOver: true})
	require.ErrorContains(t, err, "it holds mine")
	fixture.Remove(t, dst, "mine")
	_, err = convert(t.Context(), t, dst, src, other, Settings{StartOver: true})
	require.NoError(t, err)
	require.Equal(t, fixture.Sums(t, converted(t, src.Path, other, inMemory())), fixture.Sums(t, dst))
}

// TestTargetThatAppears has somebody else create the target meanwhile.
func TestTargetThatAppears(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	for name, appear := range map[string]func(dst string) error{
		"directory": func(dst string) error { return os.MkdirAll(filepath.Join(dst, "precious"), 0o755) },
		"file":      func(dst string) error { return os.WriteFile(dst, []byte("precious"), 0o644) },
	} {
		dst := filepath.Join(t.TempDir(), "out")
		s := inMemory()
		s.Progress = func(string, int64, int64) { require.NoError(t, appear(dst)) }
		_, err := convert(t.Context(), t, dst, src, plan.Options{}, s)
		require.Error(t, err, name)
		_, err = os.Stat(dst)
		require.NoError(t, err)
		fixture.RequireEntries(t, filepath.Dir(dst), ".out.journal", ".out.partial", "out")
	}
}

// TestOverflowIsRefused: a number beyond F16's range stops the run before the rest is
// written, and nothing has the final name; with leave to do so it goes on. What becomes zero
// or is NaN is counted.
func TestOverflowIsRefused(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v1-base/checkpoint"))
	const embed = "model.embed_tokens.weight"
	src := open(t, dir)
	poke(t, src, embed, "\x80\x47\x01\x00\xc0\x7f") // BF16 65536, the least subnormal, NaN
	dst := filepath.Join(t.TempDir(), "out")
	s := inMemory()
	s.IO = 1
	written, all := int64(0), int64(0)
	s.Progress = func(_ string, n, of int64) { written, all = n, of }
	_, err := convert(t.Context(), t, dst, src, plan.Options{DType: tensor.F16}, s)
	var overflow *OverflowError
	require.ErrorAs(t, err, &overflow)
	require.EqualValues(t, 1, overflow.Count)
	require.ErrorContains(t, err, "tensor "+embed+": at least 1 element would become infinite in F16")
	require.Less(t, written, all/10)
	_, err = os.Stat(dst)
	require.ErrorIs(t, err, fs.ErrNotExist)
	s.AllowOverflow = true
	r, err := convert(t.Context(), t, dst, src, plan.Options{DType: tensor.F16}, s)
	require.NoError(t, err)
	require.Contains(t, r.Lost, LostTensor{embed, tensor.Loss{Denormal: 2, Overflow: 1, Flushed: 1, NotFinite: 1}})
	require.Contains(t, fixture.Read(t, dst, plan.ManifestName), `"lost":{"rounded":0,"denormal":2,"flushed":1,"overflow":1,"not_finite":1}`)
	again, err := convert(t.Context(), t, dst, src, plan.Options{DType: tensor.F16}, s)
	require.NoError(t, err)
	require.True(t, again.Already)
	require.Equal(t, r.Lost, again.Lost)
}

// TestFlushedIsReported: numbers that become zero stop nothing.
func TestFlushedIsReported(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Clone(t, fixture.Path(t, "v1-base/checkpoint")))
	poke(t, src, "model.embed_tokens.weight", "\x01\x00\x02\x80")
	r, err := convert(t.Context(), t, filepath.Join(t.TempDir(), "out"), src, plan.Options{DType: tensor.F16}, inMemory())
	require.NoError(t, err)
	require.Contains(t, r.Lost, LostTensor{"model.embed_tokens.weight", tensor.Loss{Denormal: 2, Flushed: 2}})
}

// TestNotFiniteIsCounted: infinities and NaNs in copies, in FP8 and in its scales, with
// and without verification.
func TestNotFiniteIsCounted(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Clone(t, fixture.Path(t, "v3-fp8/checkpoint")))
	const expert, other = "model.layers.1.mlp.experts.3.up_proj.weight", "model.layers.1.mlp.experts.4.up_proj.weight"
	poke(t, src, "model.norm.weight", "\xc0\x7f\x80\xff")                // BF16 NaN, −∞
	poke(t, src, expert, "\x7f\xff\x01")                                 // E4M3 NaN twice
	poke(t, src, other+"_scale_inv", "\x00\x00\x80\x7f\x00\x00\xc0\x7f") // F32 ∞, NaN
	for _, unverified := range []bool{false, true} {
		for d, want := range map[tensor.DType][]LostTensor{
			tensor.Invalid: {{expert, tensor.Loss{NotFinite: 2}}, {other + "_scale_inv", tensor.Loss{NotFinite: 2}}, {"model.norm.weight", tensor.Loss{NotFinite: 2}}},
			tensor.BF16:    {{expert, tensor.Loss{NotFinite: 2}}, {other, tensor.Loss{NotFinite: 72 * 192}}, {"model.norm.weight", tensor.Loss{NotFinite: 2}}},
		} {
			s := inMemory()
			s.Unverified = unverified
			r, err := convert(t.Context(), t, filepath.Join(t.TempDir(), "out"), src, plan.Options{DType: d}, s)
			require.NoError(t, err)
			require.ElementsMatch(t, want, notFinite(r.Lost), "%s, not verified %t", d, unverified)
		}
	}
}

// notFinite are the tensors with elements that are not finite, but for what was rounded in others.
func notFinite(all []LostTensor) (some []LostTensor) {
	for _, l := range all {
		if l.NotFinite > 0 {
			l.Rounded, l.Denormal = 0, 0
			some = append(some, l)
		}
	}
	return some
}

// TestFinished: a target that is there already is complete if it was made from these very
// bytes, and verified if it was compared with them.
func TestFinished(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v3-fp8/checkpoint"))
	src := open(t, dir)
	o := plan.Options{DType: tensor.BF16}
	dst := filepath.Join(t.TempDir(), "out")
	run := func(unverified bool) (*Result, error) {
		s := inMemory()
		s.Unverified = unverified
		return convert(t.Context(), t, dst, src, o, s)
	}
	r, err := run(true)
	require.NoError(t, err)
	lost := r.Lost // by products that BF16 has not
	require.Len(t, lost, 72)
	require.Equal(t, &Result{Lost: lost}, r)
	r, err = run(true)
	require.NoError(t, err)
	require.Equal(t, &Result{Already: true, Lost: lost}, r)
	require.Contains(t, fixture.Read(t, dst, plan.ManifestName), `"verified": false`)
	r, err = run(false)
	require.NoError(t, err)
	require.Equal(t, &Result{Already: true, Verified: true, Lost: lost}, r)
	require.Equal(t, fixture.Read(t, converted(t, dir, o, inMemory()), plan.ManifestName), fixture.Read(t, dst, plan.ManifestName))
	r, err = run(true)
	require.NoError(t, err)
	require.Equal(t, &Result{Already: true, Verified: true, Lost: lost}, r)

	// Other times of the same bytes are looked into.
	const weight = "model.layers.1.mlp.experts.3.up_proj.weight"
	file, _, err := src.Place(weight)
	require.NoError(t, err)
	path := filepath.Join(dir, src.Inventory.Files[file].Name)
	stat, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Chtimes(path, stat.ModTime(), stat.ModTime().Add(1)))
	before := fixture.Read(t, dst, plan.ManifestName)
	r, err = run(true)
	require.NoError(t, err)
	require.Equal(t, &Result{Already: true, Verified: true, Lost: lost}, r)
	require.NotEqual(t, before, fixture.Read(t, dst, plan.ManifestName))

	// Other bytes are found, even behind the same time.
	poke(t, src, weight, "\x01")
	require.NoError(t, os.Chtimes(path, stat.ModTime(), stat.ModTime().Add(1)))
	for range 2 {
		_, err = run(false)
		require.ErrorContains(t, err, "is the output of this very conversion, but of other weights: tensor "+weight)
		require.ErrorContains(t, err, "element 0 reads 3d9a, but the source gives ")
	}
	fixture.RequireEntries(t, filepath.Dir(dst), "out")
}

// TestFinishedThatCannotBeWritten: an output that was compared with its source is verified,
// although its manifest cannot take note of it; any other failure is one.
func TestFinishedThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	dst := filepath.Join(t.TempDir(), "out")
	s := inMemory()
	s.Unverified = true
	_, err := convert(t.Context(), t, dst, src, plan.Options{}, s)
	require.NoError(t, err)
	s.Unverified = false
	for _, cause := range []error{syscall.EACCES, syscall.EROFS, syscall.EIO} {
		s.Disk = &disk.Disk{NoSync: true, Fail: func(call, path string) error {
			if call == "open" && strings.Contains(path, plan.ManifestName) {
				return cause
			}
			return nil
		}}
		r, err := convert(t.Context(), t, dst, src, plan.Options{}, s)
		if cause == syscall.EIO {
			require.ErrorIs(t, err, cause)
			require.NotContains(t, err.Error(), "no such file", "nothing was begun")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, &Result{Already: true, Verified: true}, r)
	}
	require.Contains(t, fixture.Read(t, dst, plan.ManifestName), `"verified": false`)
}

// poke overwrites the first bytes of a tensor in a checkpoint's files.
func poke(t testing.TB, c *checkpoint.Checkpoint, name, data string) {
	t.Helper()
	file, offset, err := c.Place(name)
	require.NoError(t, err)
	fixture.Poke(t, filepath.Join(c.Dir, c.Inventory.Files[file].Name), offset, data)
}

// TestProofFindsEveryChange writes, changes one byte on disk, and proves.
func TestProofFindsEveryChange(t *testing.T) {
	t.Parallel()
	for _, src := range []string{fixture.Path(t, "v3-fp8/checkpoint"), manyTiles(t)} {
		for _, o := range []plan.Options{{}, {Experts: plan.FusedExperts, AllowFP8Fused: true}, {DType: tensor.BF16}, {DType: tensor.F32}} {
			t.Run(fmt.Sprintf("%s to %s %s", filepath.Base(filepath.Dir(src)), o.Experts, o.DType), func(t *testing.T) {
				t.Parallel()
				c := open(t, src)
				p, err := plan.Conversion(c, o)
				require.NoError(t, err)
				requireProof(t, p, c)
			})
		}
	}
}

func requireProof(t *testing.T, p *plan.Plan, src Source) {
	s := inMemory()
	s.Unverified = true
	e := begun(t, filepath.Join(t.TempDir(), "out"), p, src, s)
	require.NoError(t, e.writeAndProve(t.Context()))
	e.Unverified = false
	w := onlyWorker(e)
	for i := range p.Tensors {
		x := &p.Tensors[i]
		path, middle := e.out.PathOf(x.File), x.Bytes()/2
		fixture.Flip(t, path, x.Offset+middle)
		state := e.State(i)
		err := w.proveSpan(t.Context(), i)
		element := x.DType.Elements(middle)
		require.ErrorContains(t, err, fmt.Sprintf("element %d reads ", element), "%s", x.Name)
		require.ErrorContains(t, err, ", but the source gives ")
		require.ErrorContains(t, err, path)
		require.Zero(t, e.States[i].Done)
		fixture.Flip(t, path, x.Offset+middle)
		e.Mark(i, state)
	}
	require.NoError(t, e.writeAndProve(t.Context()))
	for i := range p.Tensors {
		require.True(t, e.States[i].Proof.Compared)
	}
}

// TestProofThatIsInterrupted: a tensor whose proof has not come to its end is still written.
func TestProofThatIsInterrupted(t *testing.T) {
	t.Parallel()
	c := open(t, fixture.Path(t, "v3/checkpoint"))
	p, err := plan.Conversion(c, plan.Options{})
	require.NoError(t, err)
	s := inMemory()
	s.Unverified = true
	e := begun(t, filepath.Join(t.TempDir(), "out"), p, c, s)
	require.NoError(t, e.writeAndProve(t.Context()))
	e.source = unreadable{c}
	for i := range p.Tensors {
		require.ErrorContains(t, onlyWorker(e).proveSpan(t.Context(), i), "is away")
		require.Equal(t, p.Tensors[i].Bytes(), e.States[i].Done)
	}
}

// unreadable is a source whose weights cannot be read any more.
type unreadable struct{ *checkpoint.Checkpoint }

// ReadFile fails.
func (unreadable) ReadFile(int, []byte, int64) error { return errors.New("the disk is away") }

// TestCheckNamesWhatChanged flips single bytes all over a converted checkpoint.
func TestCheckNamesWhatChanged(t *testing.T) {
	t.Parallel()
	dst := converted(t, fixture.Path(t, "v3/checkpoint"), plan.Options{MaxShardBytes: 300_000, Experts: plan.FusedExperts}, inMemory())
	for _, f := range open(t, dst).Inventory.Files {
		header := int64(binary.LittleEndian.Uint64([]byte(fixture.Read(t, dst, f.Name)))) + 8
		for j := range 8 {
			at := f.Size * int64(2*j+1) / 16
			fixture.Flip(t, filepath.Join(dst, f.Name), at)
			checked, err := Check(t.Context(), dst, Settings{})
			require.NoError(t, err)
			require.Len(t, checked.Problems, 1)
			require.Equal(t, f.Name, checked.Problems[0].File)
			require.Equal(t, at < header, checked.Problems[0].Tensor == "", checked.Problems[0])
			fixture.Flip(t, filepath.Join(dst, f.Name), at)
		}
	}
	fixture.Replace(t, dst, checkpoint.ConfigName, "deepseek_v3", "deepseek_v2")
	fixture.Remove(t, dst, "generation_config.json")
	fixture.Write(t, dst, "model-9.safetensors", "")
	checked, err := Check(t.Context(), dst, Settings{})
	require.NoError(t, err)
	require.Len(t, checked.Problems, 3)
	_, err = Check(t.Context(), fixture.Path(t, "v3/checkpoint"), Settings{})
	require.ErrorContains(t, err, plan.ManifestName)
}

// TestCheckSaysWhatItDidNotSee: a file that the system does not let read is an error, and a
// tensor of a file that the manifest does not list is a problem.
func TestCheckSaysWhatItDidNotSee(t *testing.T) {
	t.Parallel()
	dst := converted(t, fixture.Path(t, "v3/checkpoint"), plan.Options{}, inMemory())
	loop := filepath.Join(dst, "generation_config.json")
	fixture.Remove(t, dst, "generation_config.json")
	fixture.Link(t, loop, loop)
	_, err := Check(t.Context(), dst, Settings{})
	require.ErrorContains(t, err, "too many levels of symbolic links")
	fixture.Remove(t, dst, "generation_config.json")
	fixture.Replace(t, dst, plan.ManifestName, `"file": "model.safetensors"`, `"file": "other.safetensors"`)
	checked, err := Check(t.Context(), dst, Settings{})
	require.NoError(t, err)
	require.Contains(t, checked.Problems, problem.Problem{File: "model.safetensors", Tensor: "model.norm.weight", Cause: "the manifest lists the tensor, but not the file"})
}

// TestCarriedFilesAreFollowed: copying, comparing and checking the files without weights
// tells of every byte, and can be interrupted.
func TestCarriedFilesAreFollowed(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v1-dense/checkpoint"))
	fixture.Write(t, dir, "tokenizer.json", strings.Repeat("x", 3<<20))
	src, dst := open(t, dir), filepath.Join(t.TempDir(), "out")
	told := map[string]int64{}
	ctx, cancel := context.WithCancel(t.Context())
	s := inMemory()
	s.Progress = func(phase string, n, of int64) {
		if phase == "copying other files" {
			cancel()
		}
	}
	_, err := convert(ctx, t, dst, src, plan.Options{}, s)
	require.ErrorIs(t, err, context.Canceled)
	s.Progress = func(phase string, n, of int64) {
		require.LessOrEqual(t, n, of, phase)
		told[phase] = of - n
	}
	for range 2 {
		_, err = convert(t.Context(), t, dst, src, plan.Options{}, s)
		require.NoError(t, err)
	}
	require.Zero(t, told["copying other files"])
	require.Zero(t, told["comparing other files"])
	require.Contains(t, told, "copying other files")
	require.Contains(t, told, "comparing other files")
	for phase := range map[string]bool{"comparing other files": true, "checking": true} {
		ctx, cancel := context.WithCancel(t.Context())
		s.Progress = func(now string, n, of int64) {
			if now == phase && of-n < 3<<20 {
				cancel()
			}
		}
		_, err = convert(ctx, t, dst, src, plan.Options{}, s)
		require.ErrorIs(t, err, context.Canceled, phase)
	}
}

// TestSourceChangedOnTheWay: a carried file that is no longer what was planned.
func TestSourceChangedOnTheWay(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v3/checkpoint"))
	dst := filepath.Join(t.TempDir(), "out")
	s := inMemory()
	s.Progress = func(string, int64, int64) { fixture.Write(t, dir, "generation_config.json", "{}") }
	_, err := convert(t.Context(), t, dst, open(t, dir), plan.Options{}, s)
	require.ErrorContains(t, err, "changed while the conversion ran")
	_, err = os.Stat(dst)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestWeightsChangedOnTheWay: a run whose source's weights became others while it read them
// has no output: a part may be of the old ones. A comparison with them does not count either.
func TestWeightsChangedOnTheWay(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v1-dense/checkpoint"))
	dst := filepath.Join(t.TempDir(), "out")
	src := open(t, dir)
	shard := filepath.Join(dir, src.Inventory.Files[0].Name)
	times := int64(0)
	touch := func(string, int64, int64) { // the same bytes, at other times
		times++
		require.NoError(t, os.Chtimes(shard, time.Unix(times, 0), time.Unix(times, 0)))
	}
	run := func(s Settings) error {
		_, err := convert(t.Context(), t, dst, src, plan.Options{}, s)
		return err
	}
	s := inMemory()
	s.StartOver = true
	for _, s.Unverified = range []bool{false, true} {
		s.Progress = touch
		require.ErrorContains(t, run(s), "the source's weight files changed while the conversion ran")
		_, err := os.Stat(dst)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	s.Progress = nil
	require.NoError(t, run(s))
	s = inMemory()
	s.Progress = func(phase string, n, of int64) {
		if phase == "verifying" {
			touch(phase, n, of)
		}
	}
	require.ErrorContains(t, run(s), "changed while the conversion ran")
}

func TestShortenedSource(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v3/checkpoint"))
	src := open(t, dir)
	require.NoError(t, os.Truncate(filepath.Join(dir, "model-00003-of-00007.safetensors"), 90_000))
	_, err := convert(t.Context(), t, filepath.Join(t.TempDir(), "out"), src, plan.Options{}, inMemory())
	require.ErrorContains(t, err, "unexpected EOF")
	require.ErrorContains(t, err, "model-00003-of-00007.safetensors")
}

// TestSettings: too little memory is refused, more than enough workers are fed.
func TestSettings(t *testing.T) {
	require.ErrorContains(t, Settings{Memory: 1000}.Check(), "is too little")
	require.NoError(t, Settings{}.Check())
	p := &plan.Plan{Tensors: []plan.Tensor{{DType: tensor.BF16, Shape: []int{1 << 20, 1 << 10}}}}
	for _, memory := range []int64{minMemory, DefaultMemory} {
		for _, goroutines := range []int{1, 8, 1000} {
			h := newShape(p, Settings{Memory: memory, IO: goroutines}, false)
			require.Positive(t, h.workers)
			require.LessOrEqual(t, int64(h.workers*(h.largest+3*maxPiece)), memory/2)
		}
	}
}

// TestCarriedFileChanges: a file that goes along is written and recorded as it is when it is
// copied; a finished output whose source has another one since is not called complete.
func TestCarriedFileChanges(t *testing.T) {
	t.Parallel()
	const name = "generation_config.json"
	dir := fixture.Clone(t, fixture.Path(t, "v3/checkpoint"))
	path, old := filepath.Join(dir, name), fixture.Read(t, dir, name)
	changed := strings.ToUpper(old)
	stat, err := os.Stat(path)
	require.NoError(t, err)
	write := func(text string) { // with the same size and time: only its bytes tell
		fixture.Write(t, dir, name, text)
		require.NoError(t, os.Chtimes(path, stat.ModTime(), stat.ModTime()))
	}
	dst := filepath.Join(t.TempDir(), "out")
	d, _ := crash(20, errors.New("boom"))
	_, err = convert(t.Context(), t, dst, open(t, dir), plan.Options{}, Settings{Disk: d})
	require.ErrorContains(t, err, "boom")
	write(changed)
	_, err = convert(t.Context(), t, dst, open(t, dir), plan.Options{}, inMemory())
	require.NoError(t, err)
	require.Equal(t, changed, fixture.Read(t, dst, name))
	requireChecked(t, dst)

	r, err := convert(t.Context(), t, dst, open(t, dir), plan.Options{}, inMemory())
	require.NoError(t, err)
	require.True(t, r.Already)
	write(old)
	_, err = convert(t.Context(), t, dst, open(t, dir), plan.Options{}, inMemory())
	require.ErrorContains(t, err, "files that went along changed in the source since")
	require.ErrorContains(t, err, name+": is blake3:")
	require.Equal(t, changed, fixture.Read(t, dst, name))

	s := inMemory()
	s.Progress = func(string, int64, int64) { fixture.Write(t, dir, name, changed) } // another time
	_, err = convert(t.Context(), t, filepath.Join(t.TempDir(), "out"), open(t, dir), plan.Options{}, s)
	require.ErrorContains(t, err, "changed while the conversion ran")
}

// onlyWorker returns a worker that is not run with others.
func onlyWorker(e *execution) *worker {
	return e.newWorker(disk.NewTileMemories(1, e.shape.largest)[0])
}

// TestFileOfAnotherSize: of an unfinished weight file that was cut, or has bytes behind its end, nothing is taken over.
func TestFileOfAnotherSize(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	want := fixture.Sums(t, converted(t, src.Path, plan.Options{}, inMemory()))
	for _, by := range []int64{-1, 1} {
		dst := filepath.Join(t.TempDir(), "out")
		ctx, cancel := context.WithCancel(t.Context())
		s := inMemory()
		s.Progress = func(_ string, n, of int64) {
			if n > of/2 {
				cancel()
			}
		}
		_, err := convert(ctx, t, dst, src, plan.Options{}, s)
		require.ErrorIs(t, err, context.Canceled)
		file := filepath.Join(beside(dst, "partial"), "model.safetensors")
		stat, err := os.Stat(file)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(file, stat.Size()+by))
		r, err := convert(t.Context(), t, dst, src, plan.Options{}, inMemory())
		require.NoError(t, err)
		require.Zero(t, r.Resumed)
		require.Equal(t, want, fixture.Sums(t, dst))
	}
}
