package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/remote"
	"dsmoe/convert/remote/remotetest"
	"dsmoe/convert/source"
	"dsmoe/text/problem"
)

func isFile(name string) bool { return filepath.Ext(name) != "" }

// model writes a directory with a large file and a small one.
func model(t *testing.T) (dir string, large []byte) {
	dir = t.TempDir()
	large = make([]byte, 300_000)
	for i := range large {
		large[i] = byte(i * i >> 7)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "large.bin"), large, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty.txt"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub dir"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub dir", "a%b?.txt"), []byte("below"), 0o600))
	return dir, large
}

func open(t *testing.T, c *remote.Client, url string) source.Dir {
	t.Helper()
	d, _, err := c.Open(url, isFile, []string{"config.json", "large.bin"})
	require.NoError(t, err)
	return d
}

func read(t *testing.T, d source.Dir, name string) string {
	t.Helper()
	f, err := d.Open(name)
	require.NoError(t, err)
	data, err := io.ReadAll(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return string(data)
}

// TestHub: listings of several pages, files below directories, ranges, whatever fails meanwhile.
func TestHub(t *testing.T) {
	dir, large := model(t)
	h := remotetest.Start(t, map[string]string{"model": dir, "gated": dir})
	h.Fail(40)
	d := open(t, h.Client, "hf://org/model")
	names, err := d.List("")
	require.NoError(t, err)
	require.Equal(t, []string{"config.json", "empty.txt", "large.bin", "sub dir"}, names)
	below, err := d.List("sub dir")
	require.NoError(t, err)
	require.Equal(t, []string{"a%b?.txt"}, below)
	require.Equal(t, "below", read(t, d, "sub dir/a%b?.txt"))
	require.Equal(t, "", read(t, d, "empty.txt"))
	stat, err := d.Stat("sub dir")
	require.NoError(t, err)
	require.True(t, stat.IsDir())
	_, err = d.List("none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = d.Open("none")
	require.ErrorIs(t, err, fs.ErrNotExist)

	data, err := d.Data("large.bin")
	require.NoError(t, err)
	for _, r := range [][2]int{{0, 8}, {8, 70_000}, {100_000, 10}, {100_005, 300}, {65_000, 200_000}, {299_990, 10}, {0, 300_000}} {
		got := make([]byte, r[1])
		n, err := data.ReadAt(got, int64(r[0]))
		require.NoError(t, err)
		require.Equal(t, r[1], n)
		require.Equal(t, large[r[0]:r[0]+r[1]], got)
	}
	n, err := data.ReadAt(make([]byte, 20), 299_990)
	require.Equal(t, io.EOF, err)
	require.Equal(t, 10, n)
	require.Empty(t, h.Tokens)
}

// TestToken: the token goes to the hub and to no other server.
func TestToken(t *testing.T) {
	dir, _ := model(t)
	h := remotetest.Start(t, map[string]string{"gated": dir})
	_, _, err := h.Client.Open("hf://org/gated", isFile, nil)
	requireFailure(t, err, "hf://org/gated@"+remotetest.Commit+": is gated", "set HF_TOKEN")

	path := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(path, []byte(remotetest.Token+"\n"), 0o600))
	t.Setenv("HF_TOKEN_PATH", path)
	require.Equal(t, "{}", read(t, open(t, h.Client, "hf://org/gated@main"), "config.json"))
	require.Empty(t, h.Tokens)

	t.Setenv("HF_TOKEN", "hf_wrong")
	t.Setenv("HF_ENDPOINT", strings.Replace(h.API.URL, "//", "//me:secret@", 1))
	_, _, err = h.Client.Open("hf://org/gated", isFile, nil)
	requireFailure(t, err, "is gated", "does not give access")

	h.Forget()
	t.Setenv("HF_TOKEN", "hf_\nsecret")
	_, _, err = h.Client.Open("hf://org/gated", isFile, nil)
	requireFailure(t, err, "it is no token", "")
	require.Empty(t, h.Requests())
}

func requireFailure(t *testing.T, err error, cause, hint string) {
	t.Helper()
	var bad *problem.Error
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, cause)
	require.Contains(t, bad.Problems[0].Hint, hint)
	for _, secret := range []string{"secret", "hf_", "signature", "?s"} {
		require.NotContains(t, err.Error(), secret)
		require.NotContains(t, strings.ReplaceAll(bad.Problems[0].Hint, "is it valid, and of the right account?", ""), secret)
	}
	require.NotContains(t, err.Error(), "\n")
}

// TestRefusals: what the hub does not have, or does not give.
func TestRefusals(t *testing.T) {
	dir, _ := model(t)
	h := remotetest.Start(t, map[string]string{"model": dir})
	for url, want := range map[string][2]string{
		"hf://org/none":             {"no such repository, or it is private", "check the name"},
		"hf://org/model/none.bin":   {"no such file on the server", ""},
		"hf://org/model@v9":         {"has no such revision", "a branch, tag or commit"},
		"hf://model":                {"is not hf://ORG/NAME", ""},
		"hf://org/model@%zz":        {"revision is not readable", ""},
		"https://?signature=secret": {"not the URL of a directory", ""},
	} {
		_, _, err := h.Client.Open(url, isFile, nil)
		requireFailure(t, err, want[0], want[1])
		require.Equal(t, !strings.Contains(want[0], "no such file") && !strings.Contains(want[0], "no such revision"), remote.Withheld(err), url)
	}
	t.Setenv("HF_ENDPOINT", "file:///etc")
	_, _, err := h.Client.Open("hf://org/model", isFile, nil)
	requireFailure(t, err, "HF_ENDPOINT is not the URL", "")
	ctx, cancel := context.WithCancel(t.Context())
	h.Client.Context = ctx
	cancel()
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	_, _, err = h.Client.Open("hf://org/model", isFile, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// TestReplaced: a file that changes on the server while it is read is an error that names it.
func TestReplaced(t *testing.T) {
	for _, change := range []func(h *remotetest.Hub, path string){
		func(h *remotetest.Hub, _ string) { h.Replaced["/org/model/large.bin"] = "other" },
		func(_ *remotetest.Hub, path string) { os.Truncate(path, 250_000) },
	} {
		dir, _ := model(t)
		h := remotetest.Start(t, map[string]string{"model": dir})
		data, err := open(t, h.Client, "hf://org/model").Data("large.bin")
		require.NoError(t, err)
		_, err = data.ReadAt(make([]byte, 8), 0)
		require.NoError(t, err)
		change(h, filepath.Join(dir, "large.bin"))
		_, err = data.ReadAt(make([]byte, 100_000), 100_000)
		requireFailure(t, err, "/large.bin: ", "")
		require.ErrorContains(t, err, "was replaced")
	}
}

// TestLostIdentity: an answer without an ETag is not one with an ETag before.
func TestLostIdentity(t *testing.T) {
	dir, _ := model(t)
	tag := `"1"`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if data, err := os.ReadFile(filepath.Join(dir, filepath.Base(r.URL.Path))); err == nil {
			w.Header().Set("ETag", tag)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		}
	}))
	defer s.Close()
	data, err := open(t, remote.NewClient(), s.URL+"/dir").Data("large.bin")
	require.NoError(t, err)
	_, err = data.ReadAt(make([]byte, 8), 0)
	require.NoError(t, err)
	tag = ""
	_, err = data.ReadAt(make([]byte, 100_000), 100_000)
	requireFailure(t, err, "/large.bin: was replaced", "")
}

// TestHostileServers: what no server should answer is an error, and soon.
func TestHostileServers(t *testing.T) {
	for want, answer := range map[string]http.HandlerFunc{
		"redirected to file:": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		},
		"redirected more than": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"?secret", http.StatusFound)
		},
		"more than 256.00 KiB":         func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) },
		"bytes 0-99/":                  answerRange("bytes 0-99/300000"),
		"bytes 7-65542/":               answerRange("bytes 7-65542/300000"),
		"the range \"\"":               answerRange(""),
		"0-65535/99999999999999999999": answerRange("bytes 0-65535/99999999999999999999"),
		"a compressed file":            func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Encoding", "gzip") },
		"does not say how long":        func(w http.ResponseWriter, r *http.Request) { w.(http.Flusher).Flush(); fmt.Fprint(w, "x") },
		"no such file":                 http.NotFound,
		"403 Forbidden":                func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"the whole file": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "300000")
			w.Write(make([]byte, 300_000))
		},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/dir/" {
				fmt.Fprint(w, `<a href="config.json">config.json</a> <A class=x href='large.bin?a=1&amp;b'>x</A> <a href="/etc/passwd">x</a>`)
				return
			}
			answer(w, r)
		}))
		url := strings.Replace(s.URL, "//", "//user:secret@", 1) + "/dir?signature=secret"
		require.Equal(t, s.URL+"/dir", remote.Name(url))
		d := open(t, remote.NewClient(), url)
		names, err := d.List("")
		require.NoError(t, err)
		require.Equal(t, []string{"config.json", "large.bin"}, names)
		data, err := d.Data("large.bin")
		if err == nil {
			_, err = data.ReadAt(make([]byte, 100_000), 100_000)
		}
		requireFailure(t, err, s.URL+"/dir/large.bin: ", "")
		require.ErrorContains(t, err, want)
		s.Close()
	}
}

func answerRange(header string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Range", header)
		w.WriteHeader(http.StatusPartialContent)
	}
}

// TestWebWithoutListing: of a server that lists no directory the files of a checkpoint are asked for.
func TestWebWithoutListing(t *testing.T) {
	dir, large := model(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/dir/" || r.URL.Query().Get("signature") != "secret" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		http.StripPrefix("/dir", http.FileServer(http.Dir(dir))).ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	_, _, err := remote.NewClient().Open(s.URL+"/dir", isFile, []string{"config.json"})
	requireFailure(t, err, "certificate", "")
	s = httptest.NewServer(s.Config.Handler)
	defer s.Close()
	d := open(t, remote.NewClient(), s.URL+"/dir?signature=secret")
	names, err := d.List("")
	require.NoError(t, err)
	require.Equal(t, []string{"config.json", "large.bin"}, names)
	require.Equal(t, string(large), read(t, d, "large.bin"))
	require.NotContains(t, d.Path("large.bin"), "secret")
	before, err := d.State("large.bin")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "large.bin"), large[1:], 0o600))
	_, err = d.State("large.bin")
	require.ErrorContains(t, err, "was replaced")
	after, err := open(t, remote.NewClient(), s.URL+"/dir?signature=secret").State("large.bin")
	require.NoError(t, err)
	require.NotEqual(t, before, after)
	require.False(t, errors.Is(err, fs.ErrNotExist))
}

// TestSmallFilesWithoutRanges: a small file of a server that knows no ranges is read, even if it breaks off.
func TestSmallFilesWithoutRanges(t *testing.T) {
	text, times := strings.Repeat("x", 5000)+"y", 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/dir/" {
			fmt.Fprint(w, `<a href="config.json">config.json</a>`)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		w.Header().Set("Content-Encoding", "Identity") // is no encoding
		if times++; times == 2 {
			fmt.Fprint(w, text[:3000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, text)
	}))
	defer s.Close()
	require.Equal(t, text, read(t, open(t, remote.NewClient(), s.URL+"/dir/"), "config.json"))
	require.Equal(t, 4, times)
}

// TestCaches: of a commit that was read before nothing is asked for but its weights, and these not with a cache
// of weights. What does not have its hash is read again.
func TestCaches(t *testing.T) {
	dir, large := model(t)
	h := remotetest.Start(t, map[string]string{"model": dir})
	headers, weights := t.TempDir(), t.TempDir()
	for i := range 3 {
		c := remote.NewClient()
		c.Headers, c.Cache = headers, weights
		h.Forget()
		d := open(t, c, "hf://org/model@"+remotetest.Commit)
		require.Equal(t, "{}", read(t, d, "config.json"))
		data, err := d.Data("large.bin")
		require.NoError(t, err)
		got := make([]byte, 1000)
		_, err = data.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, large[:1000], got)
		got = make([]byte, 200_000)
		_, err = data.ReadAt(got, 90_000)
		require.NoError(t, err)
		require.Equal(t, large[90_000:290_000], got)
		switch {
		case i == 1:
			require.Empty(t, h.Requests())
			kept, err := filepath.Glob(filepath.Join(headers, "*", "*", "*", "*"))
			require.NoError(t, err)
			for _, path := range kept {
				require.NoError(t, os.WriteFile(path, []byte("blake3:0\nx"), 0o600))
			}
			blocks, err := filepath.Glob(filepath.Join(weights, "*", "0"))
			require.NoError(t, err)
			block, err := os.ReadFile(blocks[0])
			require.NoError(t, err)
			block[100_000]++
			require.NoError(t, os.WriteFile(blocks[0], block, 0o600))
		default:
			require.NotEmpty(t, h.Requests())
		}
	}
}
