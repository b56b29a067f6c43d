package engine

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/model/synth"
	"dsmoe/model/tensor"
)

// planned plans a conversion of src.
func planned(t testing.TB, src *checkpoint.Checkpoint, o plan.Options) *plan.Plan {
	t.Helper()
	p, err := plan.Conversion(src, o)
	require.NoError(t, err)
	return p
}

// inParts writes all parts in some order and joins them.
func inParts(t testing.TB, dst string, p *plan.Plan, src Source, s Settings, n int) *Result {
	t.Helper()
	for _, i := range rand.New(rand.NewPCG(uint64(n), 1)).Perm(n) {
		s.Part = plan.Part{I: i + 1, N: n}
		_, err := Run(t.Context(), dst, p, src, s)
		require.NoError(t, err, "part %d of %d", i+1, n)
		require.NoFileExists(t, dst)
	}
	s.Part, s.Finish = plan.Part{}, true
	r, err := Run(t.Context(), dst, p, src, s)
	require.NoError(t, err, "%d parts", n)
	require.Equal(t, n, r.Parts)
	return r
}

// TestParts_every: whatever the number of parts, their order, and what is done to the weights, the files are those of
// one run, the manifest among them, and so are the losses.
func TestParts_every(t *testing.T) {
	t.Parallel()
	small, tiles := fixture.Path(t, "v3-fp8/checkpoint"), manyTiles(t)
	for name, c := range map[string]struct {
		src string
		o   plan.Options
		s   Settings
	}{
		"dequantised":      {small, crashOptions, Settings{}},
		"copied":           {small, plan.Options{MaxShardBytes: 300_000}, Settings{}},
		"rounded":          {tiles, plan.Options{DType: tensor.F16, MaxShardBytes: 1_000_000}, Settings{AllowOverflow: true}},
		"cut in tensors":   {tiles, plan.Options{DType: tensor.F32}, Settings{Memory: minMemory}},
		"blocks":           {tiles, plan.Options{Mixture: "q4_k_m", NoVocab: true}.Into("m.gguf"), Settings{}},
		"fused blocks":     {small, plan.Options{Mixture: "q4_k_m", NoVocab: true}.Into("m.gguf"), Settings{}},
		"to FP8":           {fixture.Path(t, "v3/checkpoint"), plan.Options{DType: tensor.F8E4M3}, Settings{}},
		"not verified":     {small, crashOptions, Settings{Unverified: true}},
		"source read once": {small, crashOptions, Settings{Origin: "https://example.org/model"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := open(t, c.src)
			c.s.Disk = inMemory().Disk
			p := planned(t, src, c.o)
			out := func() string { return filepath.Join(t.TempDir(), "m.gguf") }
			once := out()
			want, err := Run(t.Context(), once, p, src, c.s)
			require.NoError(t, err)
			parts := []int{3}
			if configtest.Every(t) {
				parts = []int{1, 2, 3, 8, 100}
			} else if name == "cut in tensors" {
				parts = []int{20}
			}
			for _, n := range parts {
				dst := out()
				r := inParts(t, dst, p, src, c.s, n)
				r.Parts = 0
				require.Equal(t, want, r, n)
				require.Equal(t, fixture.Sums(t, filepath.Dir(once)), fixture.Sums(t, filepath.Dir(dst)), n)
			}
		})
	}
}

// TestShares: the shares are all of the output once, and as large as the places to cut allow.
func TestShares(t *testing.T) {
	t.Parallel()
	p := planned(t, open(t, manyTiles(t)), plan.Options{DType: tensor.F32})
	_, all := p.Bytes()
	for _, n := range []int{1, 2, 3, 7, 20, 1000, plan.MaxParts} {
		index, at := 0, int64(0)
		for i := 1; i <= n; i++ {
			spans, size := p.Share(plan.Part{I: i, N: n}), int64(0)
			for _, s := range spans {
				require.Equal(t, []int64{int64(index), at}, []int64{int64(s.Index), s.From}, "%d of %d", i, n)
				require.Same(t, &p.Tensors[index], s.Tensor)
				if at, size = s.To, size+s.Size(); at == s.Bytes() {
					index, at = index+1, 0
				}
			}
			require.InDelta(t, float64(all)/float64(n), float64(size), 400_000, "%d of %d", i, n)
		}
		require.Equal(t, len(p.Tensors), index)
	}
}

// TestPartsStop_every: parts that stop at any call go on, and so does the finish; runs of a part at once do no harm.
func TestPartsStop_every(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	p := planned(t, src, crashOptions)
	for _, place := range []string{"beside", "inside"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			once := targetPath(t, place)
			_, err := Run(t.Context(), once, p, src, inMemory())
			require.NoError(t, err)
			want, stopped := fixture.Sums(t, once), 0
			apart, least := int64(18), 3
			if configtest.Every(t) {
				apart, least = 1, 5
			}
			for n := int64(0); n < 400; n += 1 + n*apart/6 {
				dst := targetPath(t, place)
				if stopParts(t, dst, p, src, n) {
					stopped++
				}
				require.Equal(t, want, fixture.Sums(t, dst), n)
				fixture.RequireEntries(t, filepath.Dir(dst), "out")
			}
			require.Greater(t, stopped, least)
		})
	}
}

// stopParts stops each part and the finish at its call n, if it makes so many, and runs it twice at once.
func stopParts(t *testing.T, dst string, p *plan.Plan, src Source, n int64) (stopped bool) {
	boom := errors.New("boom")
	for i := range 4 {
		s := Settings{Part: plan.Part{I: i + 1, N: 3}, IO: 2}
		if i == 3 {
			s.Part, s.Finish = plan.Part{}, true
		}
		s.Disk, _ = crash(n, boom)
		if _, err := Run(t.Context(), dst, p, src, s); err != nil {
			require.ErrorIs(t, err, boom, "call %d", n)
			stopped = true
		}
		s.Disk = &disk.Disk{NoSync: true, Fail: refuseDirect}
		var both errgroup.Group
		for range 2 {
			both.Go(func() error {
				if s.Finish {
					return nil
				}
				_, err := Run(t.Context(), dst, p, src, s)
				return err
			})
		}
		require.NoError(t, both.Wait(), "call %d", n)
		if s.Finish {
			_, err := Run(t.Context(), dst, p, src, s)
			require.NoError(t, err, "call %d", n)
		}
	}
	return stopped
}

// TestRejectedPartIsWrittenAgain: bytes that a run found to be others than the source gives count for nothing, even if
// an earlier run recorded that it wrote them.
func TestRejectedPartIsWrittenAgain(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	p := planned(t, src, crashOptions)
	dst, s := filepath.Join(t.TempDir(), "out"), inMemory()
	s.Part, s.Unverified = plan.Part{I: 1, N: 2}, true
	_, err := Run(t.Context(), dst, p, src, s)
	require.NoError(t, err)
	first := p.Share(s.Part)[0]
	fixture.Flip(t, filepath.Join(beside(dst, "partial"), p.Files[first.File].Name), first.Offset+first.From+1)
	s.Unverified = false
	_, err = Run(t.Context(), dst, p, src, s)
	require.ErrorContains(t, err, "but the source gives")
	_, err = Run(t.Context(), dst, p, src, s)
	require.NoError(t, err)
}

// TestPartsSay: what is there already is said, and not done again.
func TestPartsSay(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	p := planned(t, src, crashOptions)
	dst := filepath.Join(t.TempDir(), "out")
	s := inMemory()
	s.Part = plan.Part{I: 1, N: 2}
	r, err := Run(t.Context(), dst, p, src, s)
	require.NoError(t, err)
	require.False(t, r.Already)
	require.True(t, r.Verified)
	var writes atomic.Int64
	s.Disk = &disk.Disk{NoSync: true, Fail: func(call, _ string) error {
		if call == "write" || call == "direct" {
			writes.Add(1)
		}
		return nil
	}}
	r, err = Run(t.Context(), dst, p, src, s)
	require.NoError(t, err)
	require.True(t, r.Already)
	require.Zero(t, writes.Load())
	s = inMemory()
	for _, s.Part = range []plan.Part{{I: 2, N: 2}} {
		_, err = Run(t.Context(), dst, p, src, s)
		require.NoError(t, err)
	}
	_, err = Run(t.Context(), dst, p, src, Settings{Finish: true, Disk: s.Disk})
	require.NoError(t, err)
	r, err = Run(t.Context(), dst, p, src, s)
	require.NoError(t, err)
	require.Equal(t, &Result{Finished: true}, r)
	r, err = Run(t.Context(), dst, p, src, Settings{Finish: true, Disk: s.Disk})
	require.NoError(t, err)
	require.True(t, r.Already)
}

// TestFinishedAgain: a finish that died before it removed the journals of its parts removes them when it is called
// again, and never those of another output.
func TestFinishedAgain(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	o := crashOptions
	o.DType = tensor.F16
	p, other := planned(t, src, crashOptions), planned(t, src, o)
	for _, place := range []string{"beside", "inside"} {
		dst, boom := targetPath(t, place), errors.New("boom")
		s := inMemory()
		s.Part = plan.Part{I: 1, N: 1}
		_, err := Run(t.Context(), dst, p, src, s)
		require.NoError(t, err)
		s.Part, s.Finish = plan.Part{}, true
		s.Disk = &disk.Disk{NoSync: true, Fail: func(call, path string) error {
			if call == "remove" && strings.HasSuffix(path, ".parts") {
				return boom
			}
			return nil
		}}
		_, err = Run(t.Context(), dst, p, src, s)
		require.ErrorIs(t, err, boom)
		s.Disk = inMemory().Disk
		r, err := Run(t.Context(), dst, p, src, s)
		require.NoError(t, err)
		require.True(t, r.Already)
		fixture.RequireEntries(t, filepath.Dir(dst), "out")
		require.NoDirExists(t, filepath.Join(dst, ".dsmoe.parts"))

		s.Part, s.Finish, s.Overwrite = plan.Part{I: 1, N: 2}, false, true
		_, err = Run(t.Context(), dst, other, src, s)
		require.NoError(t, err)
		s.Part, s.Finish = plan.Part{}, true
		r, err = Run(t.Context(), dst, p, src, s)
		require.NoError(t, err)
		require.Zero(t, r.Parts)
		fixture.RequireEntries(t, filepath.Dir(dst), ".out.partial", ".out.parts", "out")
	}
}

// TestPartsRefused: what is no part of this output, and an output that lacks parts, is refused by name, and
// nothing is published.
func TestPartsRefused(t *testing.T) {
	t.Parallel()
	path := fixture.Clone(t, fixture.Path(t, "v3-fp8/checkpoint"))
	src := open(t, path)
	o := crashOptions
	o.MaxShardBytes = 0
	p, other := planned(t, src, o), o
	other.DType = tensor.F16
	touched := func(t *testing.T, _ string) {
		c := open(t, path)
		name := filepath.Join(path, c.Inventory.Files[0].Name)
		stat, err := os.Stat(name)
		require.NoError(t, err)
		require.NoError(t, os.Chtimes(name, stat.ModTime(), stat.ModTime().Add(1)))
	}
	for name, c := range map[string]struct {
		parts  int // written of 4
		change func(t *testing.T, dst string)
		p      *plan.Plan
		s      Settings
		want   []string
	}{
		"missing":        {2, nil, p, Settings{Finish: true}, []string{"parts that are not done: 3, 4 (no run recorded anything), of 4; nothing was published"}},
		"none":           {0, nil, p, Settings{Finish: true}, []string{"there are no parts that --finish could join"}},
		"one run":        {2, nil, p, Settings{}, []string{"parts of an unfinished conversion are in"}},
		"another number": {2, nil, p, Settings{Part: plan.Part{I: 1, N: 5}}, []string{"holds part 1 of 4; this is part 1 of 5"}},
		"another plan":   {1, nil, planned(t, src, other), Settings{Part: plan.Part{I: 2, N: 4}}, []string{"part 1 of 4 is of another conversion: option dtype: F16, not BF16"}},
		"its own plan":   {1, nil, planned(t, src, other), Settings{Part: plan.Part{I: 1, N: 4}}, []string{"part 1 of 4 is of another conversion"}},
		"another finish": {4, nil, planned(t, src, other), Settings{Finish: true}, []string{"part 1 of 4 is of another conversion"}},
		"source changed": {4, touched, p, Settings{Finish: true}, []string{"part 1 of 4 was written when these files of the source were others, or before they changed: model-00001-of-000003.safetensors"}},
		"damaged journal": {4, func(t *testing.T, dst string) {
			name := filepath.Join(beside(dst, "parts"), "2-of-4.1.journal")
			stat, err := os.Stat(name)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(name, stat.Size()-10))
		}, p, Settings{Finish: true}, []string{"parts that are not done: 2 (no run ended"}},
		"file lost": {4, func(t *testing.T, dst string) {
			require.NoError(t, os.Remove(filepath.Join(beside(dst, "partial"), p.Files[0].Name)))
		}, p, Settings{Finish: true}, []string{"parts that are not done: 1-4 (no run ended"}},
		"file lost, part again": {4, func(t *testing.T, dst string) {
			name := filepath.Join(beside(dst, "partial"), p.Files[0].Name)
			require.NoError(t, os.Rename(name, name+".old")) // so that the new one has another inode
			s := inMemory()
			s.Part = plan.Part{I: 1, N: 4}
			_, err := Run(t.Context(), dst, p, src, s)
			require.NoError(t, err)
		}, p, Settings{Finish: true}, []string{"parts that are not done: 2-4 (no run ended"}},
		"file made again": {4, func(t *testing.T, dst string) {
			require.NoError(t, os.Remove(filepath.Join(beside(dst, "partial"), p.Files[0].Name))) // the new one may have its inode
			s := inMemory()
			s.Part = plan.Part{I: 1, N: 4}
			_, err := Run(t.Context(), dst, p, src, s)
			require.NoError(t, err)
		}, p, Settings{Finish: true}, []string{"part"}}, // not done, or others at their ends
		"file cut": {4, func(t *testing.T, dst string) {
			require.NoError(t, os.Truncate(filepath.Join(beside(dst, "partial"), p.Files[0].Name), p.Files[0].Size/2))
		}, p, Settings{Finish: true}, []string{"has written", "the file was changed, or the file system"}},
		"bytes of a page lost": {4, func(t *testing.T, dst string) {
			at := p.Share(plan.Part{I: 3, N: 4})[0]
			fixture.Flip(t, filepath.Join(beside(dst, "partial"), p.Files[0].Name), at.Offset+at.From+1)
		}, p, Settings{Finish: true}, []string{"part 3 of 4 has written", "the file system does not keep what several machines write into one page"}},
		"not a journal": {1, func(t *testing.T, dst string) { fixture.Write(t, beside(dst, "parts"), "notes", "") }, p,
			Settings{Part: plan.Part{I: 2, N: 4}}, []string{"notes is not the journal of a part: remove it"}},
		"unfinished run": {0, func(t *testing.T, dst string) {
			d, _ := crash(30, errors.New("boom"))
			_, err := Run(t.Context(), dst, p, src, Settings{Disk: d})
			require.ErrorContains(t, err, "boom")
		}, p, Settings{Part: plan.Part{I: 1, N: 4}}, []string{"an unfinished conversion that is not in parts is in"}},
		"unknown directory": {0, func(t *testing.T, dst string) { require.NoError(t, os.Mkdir(beside(dst, "partial"), 0o755)) }, p,
			Settings{Part: plan.Part{I: 1, N: 4}}, []string{"no journal says that a conversion left it: remove it"}},
		"not verified": {4, func(t *testing.T, dst string) {
			require.NoError(t, os.RemoveAll(beside(dst, "parts")))
			require.NoError(t, os.RemoveAll(beside(dst, "partial")))
			for i := range 4 {
				s := inMemory()
				s.Part, s.Unverified = plan.Part{I: i + 1, N: 4}, i == 2
				_, err := Run(t.Context(), dst, p, src, s)
				require.NoError(t, err)
			}
		}, p, Settings{Finish: true}, []string{"parts that are not done: 3 (no run ended and verified it"}},
	} {
		t.Run(name, func(t *testing.T) {
			dst := filepath.Join(t.TempDir(), "out")
			s := inMemory()
			for i := range c.parts {
				s.Part = plan.Part{I: i + 1, N: 4}
				_, err := Run(t.Context(), dst, p, src, s)
				require.NoError(t, err)
			}
			if c.change != nil {
				c.change(t, dst)
			}
			c.s.Disk = s.Disk
			_, err := Run(t.Context(), dst, c.p, src, c.s)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NoFileExists(t, dst)
		})
	}
}

// TestPartsDirectory: the directory that the output will be in must exist.
func TestPartsDirectory(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	s := inMemory()
	s.Part = plan.Part{I: 1, N: 2}
	_, err := Run(t.Context(), filepath.Join(t.TempDir(), "none", "out"), planned(t, src, crashOptions), src, s)
	require.ErrorContains(t, err, "the directory to write it in does not exist")
}

// TestManyParts_every: parts of a model with DeepSeek-V3's tensors, all but its widths, run in random order, some
// killed at random calls, and give the bytes of one run. The long gate has all layers and 1,000 parts.
func TestManyParts_every(t *testing.T) {
	t.Parallel()
	layers, n := "4", 30
	if configtest.Every(t) {
		layers, n = "61", 1000
	}
	document := likeV3(t, map[string]string{"hidden_size": "32", "intermediate_size": "32", "moe_intermediate_size": "16",
		"num_attention_heads": "2", "num_key_value_heads": "2", "kv_lora_rank": "16", "q_lora_rank": "16", "qk_nope_head_dim": "8",
		"qk_rope_head_dim": "8", "v_head_dim": "8", "vocab_size": "99", "num_hidden_layers": layers})
	src := synthesised(t, document)
	p := planned(t, src, plan.Options{MaxShardBytes: 3_000_000})
	if configtest.Every(t) {
		require.Greater(t, len(p.Tensors), 90_000)
	}
	once, dst := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
	_, err := Run(t.Context(), once, p, src, inMemory())
	require.NoError(t, err)
	r, boom, killed := rand.New(rand.NewPCG(3, 4)), errors.New("boom"), 0
	for _, i := range r.Perm(n) {
		s := Settings{Part: plan.Part{I: i + 1, N: n}}
		for err := boom; err != nil; {
			if s.Disk, _ = crash(1+r.Int64N(60), boom); r.IntN(2) == 0 {
				s.Disk = inMemory().Disk
			}
			if _, err = Run(t.Context(), dst, p, src, s); err != nil {
				require.ErrorIs(t, err, boom)
				killed++
			}
		}
	}
	require.Greater(t, killed, n/10)
	_, err = Run(t.Context(), dst, p, src, Settings{Finish: true, Disk: inMemory().Disk})
	require.NoError(t, err)
	require.Equal(t, fixture.Sums(t, once), fixture.Sums(t, dst))
}

// likeV3 returns DeepSeek-V3's config.json with other numbers in some fields.
func likeV3(t testing.TB, fields map[string]string) string {
	document := fixture.Read(t, fixture.Path(t, "configs"), "deepseek-v3.json")
	for field, value := range fields {
		document = regexp.MustCompile(`"`+field+`": \d+`).ReplaceAllString(document, `"`+field+`": `+value)
	}
	return document
}

// synthesised writes and opens a checkpoint with the weights that a config asks for.
func synthesised(t testing.TB, document string) *checkpoint.Checkpoint {
	c, err := config.Parse(strings.NewReader(document))
	require.NoError(t, err)
	source := synth.New(c, 1)
	dst := filepath.Join(t.TempDir(), "checkpoint")
	p, err := plan.Synthesis(plan.Synthetic{Tensors: slices.Collect(source.Tensors()), Config: []byte(document), Rule: "seed 1", Fill: source.Fill}, 0)
	require.NoError(t, err)
	s := inMemory()
	s.Unverified = true
	_, err = Run(t.Context(), dst, p, open(t, fixture.Path(t, "v1-dense/checkpoint")), s)
	require.NoError(t, err)
	return open(t, dst)
}
