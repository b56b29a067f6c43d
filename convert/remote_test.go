package convert

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote"
	"dsmoe/convert/remote/remotetest"
	"dsmoe/model/tensor"
)

// TestConversionsOfTheHub_every: what is converted from the hub, with 30 % of the requests failing or breaking off,
// is what is converted from the disk, byte for byte but for the manifest.
func TestConversionsOfTheHub_every(t *testing.T) {
	options := map[string]map[string]plan.Options{
		"v3-fp8": {"copy": {}, "bf16": {DType: tensor.BF16}, "fused": {Experts: plan.FusedExperts, DType: tensor.F32},
			"q8_0": {Format: "gguf", NoVocab: true, Mixture: "q8_0", Name: "x"}},
		"v2-lite": {"gguf": {Format: "gguf", NoVocab: true, Name: "x"}, "f16": {Format: "gguf", NoVocab: true, DType: tensor.F16, Name: "x"},
			"fp8": {DType: tensor.F8E4M3}},
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		path := fixture.Path(t, name+"/checkpoint")
		h := remotetest.Start(t, map[string]string{"model": path}).Fail(30)
		for i, what := range slices.Sorted(maps.Keys(options[name])) {
			if i%3 > 0 && !configtest.Every(t) {
				continue
			}
			o := options[name][what]
			want := converted(t, path, o)
			dst := filepath.Join(t.TempDir(), "out")
			r, err := Run(t.Context(), dst, openRemote(t, h.Client, "hf://org/model"), Options{o, inMemory()})
			require.NoError(t, err, what)
			require.True(t, r.Verified)
			requireSameOutput(t, want, dst)
			require.Contains(t, fixture.Read(t, dst, plan.ManifestName), `"origin": "hf://org/model@`+remotetest.Commit+`"`)
		}
	}
}

func openRemote(t *testing.T, client *remote.Client, url string) *checkpoint.Checkpoint {
	t.Helper()
	c, err := checkpoint.Opener{Client: client}.Open(url)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// requireSameOutput compares all files but the manifests.
func requireSameOutput(t *testing.T, want, got string) {
	t.Helper()
	a, b := fixture.Sums(t, want), fixture.Sums(t, got)
	delete(a, plan.ManifestName)
	delete(b, plan.ManifestName)
	require.Equal(t, a, b)
}

// nameless serves a directory without ETags and without Last-Modified.
func nameless(t *testing.T, dir string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(filepath.Join(dir, filepath.Base(r.URL.Path)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(s.Close)
	return s.URL + "/model"
}

// TestSourceWithoutIdentity: nothing that an earlier run read of a server without ETag and Last-Modified counts for the
// files that it has now: there are no parts, an interrupted run starts over, and a finished output is compared whole.
func TestSourceWithoutIdentity(t *testing.T) {
	model := fixture.Clone(t, fixture.Path(t, "v3/checkpoint"))
	url := nameless(t, model)
	for _, s := range []Settings{{Part: plan.Part{I: 1, N: 2}}, {Finish: true}} {
		s.Disk = inMemory().Disk
		dst := filepath.Join(t.TempDir(), "out")
		_, err := RunPart(t.Context(), dst, openRemote(t, remote.NewClient(), url), Options{plan.Options{}, s})
		require.ErrorContains(t, err, "sends neither ETag nor Last-Modified: whether two parts read the same bytes is not known")
	}

	store := remotetest.StartStore(t, map[string]string{"models": t.TempDir()})
	for _, dst := range []string{filepath.Join(t.TempDir(), "out"), "s3://models/out"} {
		testSourceWithoutIdentity(t, store.Client, model, url, dst)
	}
}

func testSourceWithoutIdentity(t *testing.T, client *remote.Client, model, url, dst string) {
	o := Options{plan.Options{DType: tensor.F32}, inMemory()}
	o.Client = client
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		o.Progress = func(_ string, n, of int64) {
			if n > of/2 {
				cancel()
			}
		}
		_, err := Run(ctx, dst, openRemote(t, client, url), o)
		var left *Interrupted
		require.ErrorAs(t, err, &left)
		require.True(t, left.Restart)
	}
	o.Progress = nil
	change := func(shard string) {
		data := []byte(fixture.Read(t, model, shard))
		data[len(data)-100] ^= 1
		require.NoError(t, os.WriteFile(filepath.Join(model, shard), data, 0o600))
	}
	change("model-00001-of-00007.safetensors")
	change("model-00007-of-00007.safetensors")
	r, err := Run(t.Context(), dst, openRemote(t, client, url), o)
	require.NoError(t, err)
	require.Zero(t, r.Resumed)
	require.Contains(t, strings.Join(r.Notes, "\n"), "files that change while they are read are not noticed")
	if !remote.Is(dst) {
		requireSameOutput(t, converted(t, model, o.Options), dst)
	}

	read, _ := client.Traffic()
	r, err = Run(t.Context(), dst, openRemote(t, client, url), o)
	require.NoError(t, err)
	require.True(t, r.Already)
	now, _ := client.Traffic()
	require.Greater(t, now-read, r.Bytes/2)

	change("model-00001-of-00007.safetensors")
	_, err = Run(t.Context(), dst, openRemote(t, client, url), o)
	require.ErrorContains(t, err, "is the output of this very conversion, but of other weights")
	o.Overwrite = true
	r, err = Run(t.Context(), dst, openRemote(t, client, url), o)
	require.NoError(t, err)
	require.True(t, r.Replaced)
}
