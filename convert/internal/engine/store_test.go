package engine

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote/remotetest"
	"dsmoe/model/tensor"
)

// startStore starts a store with one empty bucket, models, whose objects lie in the directory that it returns.
func startStore(t *testing.T) (*remotetest.Hub, string) {
	t.Helper()
	dir := t.TempDir()
	return remotetest.StartStore(t, map[string]string{"models": dir}), dir
}

// requireStored demands that an output in a store fits its manifest.
func requireStored(t *testing.T, hub *remotetest.Hub, dst string) {
	t.Helper()
	checked, err := Check(t.Context(), dst, Settings{Client: hub.Client})
	require.NoError(t, err)
	require.Empty(t, checked.Problems)
}

// contents returns the files below a directory by their names.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files[rel] = string(data)
		return err
	}))
	return files
}

// requireContents demands that two outputs have the same files.
func requireContents(t *testing.T, want, got map[string]string) {
	t.Helper()
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
	for name := range want {
		require.Equal(t, want[name] == got[name], true, name)
	}
}

// TestStoreSameBytes_every: an output in a store has the bytes of one on the disk, with 30 % of the requests failing.
func TestStoreSameBytes_every(t *testing.T) {
	o := plan.Options{DType: tensor.BF16, MaxShardBytes: 1_500_000}
	src := fixture.Path(t, "v3-fp8/checkpoint")
	for _, unverified := range []bool{false, true} {
		if unverified && !configtest.Every(t) {
			continue
		}
		s := inMemory()
		s.Unverified = unverified
		want := contents(t, converted(t, src, o, s))
		hub, bucket := startStore(t)
		s.Client = hub.Client
		if !unverified {
			hub.Fail(30)
		}
		r, err := convert(t.Context(), t, "s3://models/a dir/out", open(t, src), o, s)
		require.NoError(t, err)
		require.Equal(t, !unverified, r.Verified)
		requireContents(t, want, contents(t, filepath.Join(bucket, "a dir/out")))
		require.Zero(t, hub.Uploads())
		r, err = convert(t.Context(), t, "s3://models/a dir/out", open(t, src), o, s)
		require.NoError(t, err)
		require.True(t, r.Already)
		requireStored(t, hub, "s3://models/a dir/out")
	}
}

// TestStoreFile: one GGUF file in a store, beside other objects.
func TestStoreFile(t *testing.T) {
	src := fixture.Path(t, "v1-base/checkpoint")
	into := func(dst string) plan.Options { return plan.Options{DType: tensor.F32, NoVocab: true}.Into(dst) }
	dir := t.TempDir()
	_, err := convert(t.Context(), t, filepath.Join(dir, "x.gguf"), open(t, src), into("x.gguf"), inMemory())
	require.NoError(t, err)
	hub, bucket := startStore(t)
	fixture.Write(t, bucket, "x.gguf.other", "1")
	_, err = convert(t.Context(), t, "s3://models/x.gguf", open(t, src), into("x.gguf"), Settings{Client: hub.Client})
	require.NoError(t, err)
	want := contents(t, dir)
	want["x.gguf.other"] = "1"
	requireContents(t, want, contents(t, bucket))
	require.Zero(t, hub.Uploads())
	requireStored(t, hub, "s3://models/x.gguf")
}

// TestStoreCrash_every: a run that dies at any request leaves nothing that looks complete, and the next one goes on to the
// same bytes.
func TestStoreCrash_every(t *testing.T) {
	o := plan.Options{DType: tensor.BF16, MaxShardBytes: 100_000}
	c := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	s := inMemory()
	s.IO = 2
	want := contents(t, converted(t, c.Path, o, s))
	hub, bucket := startStore(t)
	s.Client = hub.Client
	dst := filepath.Join(bucket, "out")
	for n := int64(1); ; n += crashStep(t, 60, 6) {
		require.NoError(t, os.RemoveAll(dst))
		hub.StopAfter(int(n))
		_, err := convert(t.Context(), t, "s3://models/out", c, o, s)
		hub.StopAfter(0)
		if err == nil {
			require.Greater(t, n, int64(50))
			break
		}
		if _, err := os.Stat(filepath.Join(dst, checkpoint.ConfigName)); err == nil {
			for name := range want {
				require.True(t, name == "model.safetensors.index.json" || want[name] == fixture.Read(t, dst, name), name)
			}
		}
		_, err = convert(t.Context(), t, "s3://models/out", c, o, s)
		require.NoError(t, err, n)
		requireContents(t, want, contents(t, dst))
		require.Zero(t, hub.Uploads(), n)
		hub.Forget()
	}
}

// dense is a small conversion to s3://models/out, with one worker.
func dense(t *testing.T) (run func(s Settings) (*Result, error), hub *remotetest.Hub, dst string,
	want map[string]string) {
	o := plan.Options{DType: tensor.BF16, MaxShardBytes: 100_000}
	c := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	want = contents(t, converted(t, c.Path, o, inMemory()))
	hub, bucket := startStore(t)
	return func(s Settings) (*Result, error) {
		s.IO, s.Client = 1, hub.Client
		return convert(t.Context(), t, "s3://models/out", c, o, s)
	}, hub, filepath.Join(bucket, "out"), want
}

// TestStoreResume: parts that an interrupted run sent are not sent again, unless the store removed them.
func TestStoreResume(t *testing.T) {
	run, hub, dst, want := dense(t)
	sent := func() (n int) {
		for _, r := range hub.Requests() {
			if strings.HasPrefix(r, "PUT /models/out/.dsmoe.partial/model") {
				n++
			}
		}
		hub.Forget()
		return n
	}
	_, err := run(Settings{})
	require.NoError(t, err)
	all := sent()
	for _, expired := range []bool{false, true} {
		require.NoError(t, os.RemoveAll(dst))
		hub.StopAfter(10)
		_, err = run(Settings{})
		require.ErrorContains(t, err, "s3://models/out/.dsmoe.")
		before := sent()
		require.Greater(t, before, 2)
		hub.StopAfter(0)
		if expired {
			hub.Expire()
		}
		_, err = run(Settings{})
		require.NoError(t, err)
		if expired {
			require.Equal(t, all, sent())
		} else {
			require.LessOrEqual(t, sent()+before, all+1) // one request was refused
		}
		requireContents(t, want, contents(t, dst))
	}
}

// TestStoreProof: what was stored is read again. A file with other bytes than were sent is made anew.
func TestStoreProof(t *testing.T) {
	run, hub, dst, want := dense(t)
	hub.Spoil = "out/.dsmoe.partial/model-00002"
	for range 2 {
		_, err := run(Settings{})
		require.ErrorContains(t, err, "s3://models/out/.dsmoe.partial/model-00002-of-")
		require.NoFileExists(t, filepath.Join(dst, checkpoint.ConfigName))
	}
	hub.Spoil = ""
	hub.Forget()
	_, err := run(Settings{})
	require.NoError(t, err)
	requireContents(t, want, contents(t, dst))
	require.NotContains(t, strings.Join(hub.Requests(), "\n"), "PUT /models/out/.dsmoe.partial/model-00001")
}

// TestStoreTwoRuns: of two runs at once the one that began last finishes, and the other one stops.
func TestStoreTwoRuns(t *testing.T) {
	run, hub, dst, want := dense(t)
	first, second := begunDense(t, hub), begunDense(t, hub)
	require.ErrorIs(t, first.writeAndProve(t.Context()), progress.ErrBusy)
	_, err := second.finish(t.Context())
	require.NoError(t, err)
	requireContents(t, want, contents(t, dst))
	require.Zero(t, hub.Uploads())

	fixture.Write(t, dst, ".dsmoe.journal/000077", "of a run that slept meanwhile")
	r, err := run(Settings{})
	require.NoError(t, err)
	require.True(t, r.Already)
	requireContents(t, want, contents(t, dst))
}

// begunDense is a run of the conversion dense that has begun.
func begunDense(t *testing.T, hub *remotetest.Hub) *execution {
	c := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	p, err := plan.Conversion(c, plan.Options{DType: tensor.BF16, MaxShardBytes: 100_000})
	require.NoError(t, err)
	return begun(t, "s3://models/out", p, c, Settings{Client: hub.Client})
}

// TestStoreReplacedPartial: an unfinished file that was replaced after its proof is made anew, and one that no
// conversion left stays.
func TestStoreReplacedPartial(t *testing.T) {
	run, hub, dst, want := dense(t)
	e := begunDense(t, hub)
	require.NoError(t, e.writeAndProve(t.Context()))
	store, err := hub.Client.OpenStore("s3://models/out")
	require.NoError(t, err)
	partial := ".dsmoe.partial/" + e.plan.Files[0].Name
	require.NoError(t, store.Put(partial, make([]byte, e.plan.Files[0].Size)))
	_, err = e.finish(t.Context())
	require.ErrorContains(t, err, "replaced")
	_, err = run(Settings{})
	require.NoError(t, err)
	requireContents(t, want, contents(t, dst))

	require.NoError(t, os.RemoveAll(dst))
	require.NoError(t, store.Put(partial, []byte("mine")))
	_, err = run(Settings{})
	require.ErrorContains(t, err, "s3://models/out/.dsmoe.partial exists, and no journal says that a conversion left it")
	require.Equal(t, map[string]string{partial: "mine"}, contents(t, dst))
}

// TestStoreOverwrite_every: objects in the way are refused. A finished output is replaced if that is asked for, and it is as
// it was written.
func TestStoreOverwrite_every(t *testing.T) {
	run, hub, dst, want := dense(t)
	require.NoError(t, os.Mkdir(dst, 0o755))
	fixture.Write(t, dst, "mine", "1")
	_, err := run(Settings{})
	require.ErrorContains(t, err, "the place is not empty: it holds mine")
	_, err = run(Settings{Overwrite: true})
	require.ErrorContains(t, err, "cannot be overwritten, as it is not a finished output")
	require.Equal(t, map[string]string{"mine": "1"}, contents(t, dst))
	require.NoError(t, os.Remove(filepath.Join(dst, "mine")))

	other := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	older := func() {
		o, s := plan.Options{DType: tensor.F16}, Settings{Unverified: true, Client: hub.Client}
		_, err := convert(t.Context(), t, "s3://models/out", other, o, s)
		require.NoError(t, err)
	}
	older()
	_, err = run(Settings{})
	require.ErrorContains(t, err, "it holds the finished output of another conversion")
	fixture.Write(t, dst, "mine", "1")
	_, err = run(Settings{Overwrite: true})
	require.ErrorContains(t, err, "it holds mine, which its manifest does not list")
	require.NoError(t, os.Remove(filepath.Join(dst, "mine")))
	fixture.Write(t, dst, checkpoint.ConfigName, "{}")
	_, err = run(Settings{Overwrite: true})
	require.ErrorContains(t, err, "its files changed since they were written")
	r, err := run(Settings{Overwrite: true, OverwriteChanged: true})
	require.NoError(t, err)
	require.True(t, r.Replaced)
	requireContents(t, want, contents(t, dst))

	fixture.Flip(t, filepath.Join(dst, "model-00001-of-00003.safetensors"), 50_000)
	_, err = run(Settings{})
	require.ErrorContains(t, err, "was changed since")
	require.NoError(t, os.RemoveAll(dst))
	older()
	hub.Forget()
	_, err = run(Settings{Overwrite: true})
	require.NoError(t, err)
	last := len(hub.Requests()) - 20
	for n := 1; ; n++ { // a run that replaces an output dies anywhere, above all at its end
		if n%9 > 0 && n < last || !configtest.Every(t) && (n < last || n%7 > 0) {
			continue
		}
		require.NoError(t, os.RemoveAll(dst))
		older()
		hub.StopAfter(n)
		_, err = run(Settings{Overwrite: true})
		hub.StopAfter(0)
		if err == nil {
			break
		}
		_, err = run(Settings{Overwrite: true})
		require.NoError(t, err, n)
		requireContents(t, want, contents(t, dst))
		require.Zero(t, hub.Uploads())
	}
}

// TestStoreOtherPlan: the unfinished output of another conversion is refused, and removed with StartOver.
func TestStoreOtherPlan(t *testing.T) {
	run, hub, dst, want := dense(t)
	base := open(t, fixture.Path(t, "v1-base/checkpoint"))
	hub.StopAfter(15)
	_, err := convert(t.Context(), t, "s3://models/out", base, plan.Options{}, inMemory())
	require.Error(t, err)
	hub.StopAfter(0)
	_, err = run(Settings{})
	require.ErrorContains(t, err,
		"an unfinished conversion with other options, or of another source is in s3://models/out/.dsmoe.partial")
	_, err = run(Settings{StartOver: true})
	require.NoError(t, err)
	requireContents(t, want, contents(t, dst))
	require.Zero(t, hub.Uploads())
}

// TestStoreStartOver_every: a run that dies while it removes what another conversion left, with files of the same sizes,
// leaves nothing that the next one takes for its own.
func TestStoreStartOver_every(t *testing.T) {
	run, hub, dst, want := dense(t)
	delete(want, plan.ManifestName)
	other := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	resumed, apart, least := 0, 4, 1
	if configtest.Every(t) {
		apart, least = 1, 5
	}
	for n := 5; n < 18; n += apart {
		require.NoError(t, os.RemoveAll(dst))
		hub.Expire()
		hub.StopAfter(25)
		o := plan.Options{DType: tensor.F16, MaxShardBytes: 100_000}
		_, err := convert(t.Context(), t, "s3://models/out", other, o, Settings{Unverified: true, IO: 1, Client: hub.Client})
		require.Error(t, err)
		hub.StopAfter(n)
		_, err = run(Settings{Unverified: true, StartOver: true})
		require.Error(t, err)
		hub.StopAfter(0)
		if _, err = run(Settings{Unverified: true}); err != nil {
			require.ErrorContains(t, err, "an unfinished conversion with other options")
			continue
		}
		resumed++
		got := contents(t, dst)
		delete(got, plan.ManifestName)
		requireContents(t, want, got)
	}
	require.Greater(t, resumed, least)
}

// TestStoreMemory: parts of the uploads of large files do not fit in little memory.
func TestStoreMemory(t *testing.T) {
	p := &plan.Plan{Files: []plan.File{{Name: "x.gguf", Size: 670 << 30}}}
	s := Settings{Memory: 128 << 20}
	require.NoError(t, s.CheckPlan("x.gguf", p))
	err := s.CheckPlan("s3://models/x.gguf", p)
	require.ErrorContains(t, err, "an upload in parts does not fit in 128.00 MiB of memory")
	s.Memory = 512 << 20
	require.NoError(t, s.CheckPlan("s3://models/x.gguf", p))
	p.Tensors = []plan.Tensor{{DType: tensor.U8, Shape: []int{256, 16 << 20}}}
	for _, test := range []struct{ memory, file, workers int64 }{{512 << 20, 1 << 30, 16}, {512 << 20, 670 << 30, 2}, {4 << 30, 670 << 30, 16}} {
		p.Files[0].Size = test.file
		s := Settings{Memory: test.memory, Origin: "https://example.org/model"}.withDefaults()
		h := newShape(p, s, true)
		require.EqualValues(t, test.workers, h.workers)
		require.Positive(t, h.limit)
		buffers := int64(h.workers) * int64(h.largest+3*maxPiece+readAhead)
		require.LessOrEqual(t, buffers, test.memory/2)
		require.LessOrEqual(t, buffers+int64(h.workers)*2*s.Client.PartSize(test.file), usable(test.memory))
		proof := ofStore(p, s)
		require.Equal(t, 16, proof.workers)
		require.Equal(t, maxTile, proof.tileBytes(29<<20))
		require.LessOrEqual(t, int64(proof.workers)*int64(proof.largest+3*maxPiece+readAhead), test.memory/2)
	}
}
