// Package remotetest re-enacts the HTTP side of the Hugging Face hub for tests.
package remotetest

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/remote"
)

// Commit is the commit that branch main of every repository is at.
const Commit = "0123456789abcdef0123456789abcdef01234567"

// Token is the token that gated repositories demand.
const Token = "hf_secretsecret"

// Hub is a hub that serves directories of files as repositories ORG/NAME, and redirects files to Storage; or a store.
type Hub struct {
	files   fs.FS            // whose files seek
	written Files            // the same of a store; nil of a hub
	API     *httptest.Server // the hub; nil of a store
	Storage *httptest.Server // where files lie, at another port
	Client  *remote.Client   // of the test; nil of NewHub and NewStore

	mu       sync.Mutex
	faults   int // in percent: see Fail
	requests int
	last     int // the last request to a store that is answered; 0 answers all
	uploads  map[string]*upload
	begun    int               // uploads that were begun, which number them
	Spoil    string            // what the names of objects begin with whose last byte an upload spoils; "" spoils none
	Log      []string          // requests: method, path, range
	Tokens   []string          // Authorization of requests to Storage
	Replaced map[string]string // ETags of files that were replaced, by path
	Bytes    int64             // of files that were sent
	cut      int               // responses that the client closed before their end
}

// NewHub starts a hub of files that seek, such as those of os.DirFS. Close ends it.
func NewHub(files fs.FS) *Hub {
	h := &Hub{files: files, Replaced: map[string]string{}}
	h.API = httptest.NewServer(http.HandlerFunc(h.api))
	h.Storage = httptest.NewServer(http.HandlerFunc(h.storage))
	return h
}

// Start starts a hub with the directories as repositories org/NAME, and a client of it, until the test ends.
func Start(t *testing.T, dirs map[string]string) *Hub {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "org"), 0o755))
	for name, dir := range dirs {
		require.NoError(t, os.Symlink(dir, filepath.Join(root, "org", name)))
	}
	h := NewHub(os.DirFS(root))
	h.useClient(t)
	t.Setenv("HF_ENDPOINT", h.API.URL)
	t.Setenv("HF_TOKEN", "")
	t.Setenv("HF_TOKEN_PATH", filepath.Join(root, "none"))
	t.Setenv("HF_HUB_OFFLINE", "")
	return h
}

// useClient makes a client, which hardly waits before it repeats a request, and closes the hub when the test ends.
func (h *Hub) useClient(t *testing.T) {
	h.Client = remote.NewClient()
	h.Client.Wait = time.Millisecond
	t.Cleanup(h.Close)
}

// Close ends the hub.
func (h *Hub) Close() {
	if h.API != nil {
		h.API.Close()
	}
	h.Storage.Close()
}

// Requests returns the requests so far.
func (h *Hub) Requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.Log)
}

// Traffic returns how many requests there were, how many responses the client closed before their end, and the bytes of
// files that were sent.
func (h *Hub) Traffic() (requests, cut int, sent int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.Log), h.cut, h.Bytes
}

// Forget forgets the requests so far.
func (h *Hub) Forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Log, h.Bytes, h.cut = nil, 0, 0
}

// fault is what happens to a request.
type fault int

const (
	noFault fault = iota
	unavailable
	breaksOff
	stopped // see StopAfter
)

// Fail makes a share of the requests, in percent, fail or break off, from now on.
func (h *Hub) Fail(percent int) *Hub {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = percent
	return h
}

// record notes a request and chooses its fault: of 100 requests so many fail, in an order that is the same in
// every run.
func (h *Hub) record(request *http.Request) fault {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests++
	h.Log = append(h.Log, strings.TrimSpace(request.Method+" "+request.URL.Path+" "+request.Header.Get("Range")))
	r := rand.New(rand.NewPCG(uint64(h.requests), 1))
	switch {
	case h.last > 0 && h.requests > h.last:
		return stopped
	case r.IntN(100) >= h.faults:
		return noFault
	}
	return unavailable + fault(r.IntN(2))
}

// api answers requests to the hub.
func (h *Hub) api(w http.ResponseWriter, r *http.Request) {
	if h.record(r) != noFault {
		unavailableNow(w)
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	listing := parts[0] == "api"
	if listing {
		parts = parts[2:]
	}
	if listing && len(parts) == 2 {
		parts = append(parts, "revision", "main")
	}
	if len(parts) < 4 {
		http.NotFound(w, r)
		return
	}
	name, verb, revision := parts[0]+"/"+parts[1], parts[2], parts[3]
	known := r.Header.Get("Authorization") == "Bearer "+Token
	switch {
	case !h.isDir(name):
		refuse(w, http.StatusUnauthorized, "RepoNotFound")
	case parts[1] == "gated" && !known && (!listing || verb == "tree"):
		refuse(w, http.StatusForbidden, "GatedRepo")
	case revision != Commit && revision != "main":
		refuse(w, http.StatusNotFound, "RevisionNotFound")
	case verb == "revision":
		json.NewEncoder(w).Encode(map[string]any{"id": name, "sha": Commit, "siblings": h.list(name, "rfilename")})
	case verb == "tree":
		list, from := h.list(name, "path"), 0
		fmt.Sscanf(r.URL.Query().Get("cursor"), "%d", &from)
		if end := from + perPage; end < len(list) {
			w.Header().Set("Link", fmt.Sprintf(`<%s%s?recursive=true&cursor=%d>; rel="next"`, h.API.URL, r.URL.Path, end))
			list = list[:end]
		}
		json.NewEncoder(w).Encode(list[from:])
	case verb == "resolve":
		h.resolve(w, r, name, strings.Join(parts[4:], "/"))
	default:
		http.NotFound(w, r)
	}
}

func (h *Hub) isDir(name string) bool {
	stat, err := fs.Stat(h.files, name)
	return err == nil && stat.IsDir()
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Error-Code", code)
	w.WriteHeader(status)
}

func unavailableNow(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "0")
	w.WriteHeader(http.StatusServiceUnavailable)
}

// perPage is the number of files on a page of the listing.
const perPage = 3

// list lists the files below a directory, whose names have a key.
func (h *Hub) list(dir, key string) []map[string]any {
	list := []map[string]any{}
	_ = fs.WalkDir(h.files, dir, func(name string, d fs.DirEntry, err error) error {
		if stat, serr := fs.Stat(h.files, name); serr == nil && !stat.IsDir() {
			list = append(list, map[string]any{"type": "file", key: strings.TrimPrefix(name, dir+"/"), "size": stat.Size(),
				"oid": fmt.Sprintf("%x", stat.ModTime().UnixNano())})
		}
		return err
	})
	return list
}

// resolve redirects to the storage, with a signature in the query.
func (h *Hub) resolve(w http.ResponseWriter, r *http.Request, name, file string) {
	path := "/" + name + "/" + file
	stat, err := fs.Stat(h.files, name+"/"+file)
	if err != nil {
		refuse(w, http.StatusNotFound, "EntryNotFound")
		return
	}
	w.Header().Set("X-Repo-Commit", Commit)
	w.Header().Set("X-Linked-Size", fmt.Sprint(stat.Size()))
	w.Header().Set("X-Linked-ETag", h.etag(path))
	w.Header().Set("ETag", h.etag(path))
	http.Redirect(w, r, h.Storage.URL+(&url.URL{Path: path}).EscapedPath()+"?signature=secret", http.StatusFound)
}

// etag is the ETag of a file.
func (h *Hub) etag(file string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if tag := h.Replaced[file]; tag != "" {
		return `"` + tag + `"`
	}
	return `"` + path.Base(file) + `"`
}

// storage sends a file.
func (h *Hub) storage(w http.ResponseWriter, r *http.Request) {
	fault := h.record(r)
	h.mu.Lock()
	if a := r.Header.Get("Authorization"); a != "" {
		h.Tokens = append(h.Tokens, a)
	}
	h.mu.Unlock()
	if fault == unavailable {
		unavailableNow(w)
		return
	}
	if r.URL.Query().Get("signature") != "secret" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	h.send(w, r, fault)
}

// send sends the file that a request names.
func (h *Hub) send(w http.ResponseWriter, r *http.Request, fault fault) {
	f, err := h.files.Open(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	defer f.Close()
	w.Header().Set("ETag", h.etag(r.URL.Path))
	counted := &body{ResponseWriter: w, hub: h, most: -1}
	if fault == breaksOff {
		counted.most = 1000
	}
	stat, _ := f.Stat()
	http.ServeContent(counted, r, "", stat.ModTime(), f.(io.ReadSeeker))
	if r.Context().Err() != nil {
		h.mu.Lock()
		h.cut++
		h.mu.Unlock()
	}
}

// body counts what is sent, and breaks off after most bytes, if most is not negative.
type body struct {
	http.ResponseWriter
	hub  *Hub
	most int
}

// Write sends.
func (b *body) Write(data []byte) (int, error) {
	if b.most >= 0 && len(data) > b.most {
		b.ResponseWriter.Write(data[:b.most])
		b.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	b.hub.mu.Lock()
	b.hub.Bytes += int64(len(data))
	b.hub.mu.Unlock()
	return b.ResponseWriter.Write(data)
}

// ReadFrom sends what r reads in large pieces.
func (b *body) ReadFrom(r io.Reader) (int64, error) {
	piece := pieces.Get().(*[1 << 20]byte)
	defer pieces.Put(piece)
	return io.CopyBuffer(struct{ io.Writer }{b}, r, piece[:])
}

var pieces = sync.Pool{New: func() any { return new([1 << 20]byte) }}
