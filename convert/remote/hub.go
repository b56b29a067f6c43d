package remote

// Models of the Hugging Face hub: hf://ORG/NAME[@REVISION].

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"

	"dsmoe/text"
)

// hub is a commit of a model's repository.
type hub struct {
	endpoint *url.URL
	name     string // ORG/NAME
	commit   string
	token    string // "" without one

	mu     sync.Mutex
	places map[string]*url.URL // where the hub redirected the request for a file to
}

// hubURL splits hf://ORG/NAME[@REVISION][/PATH]. A revision with a slash is written %2F, but for those that
// the hub makes itself.
var hubURL = regexp.MustCompile(`^hf://([\w.-]+/[\w.-]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(.*))?$`)

var commitID = regexp.MustCompile(`^[0-9a-f]{40,64}$`)

// openHub resolves the revision to a commit. It returns the path below the repository, too.
func openHub(c *Client, path string) (o *hub, below string, err error) {
	m := hubURL.FindStringSubmatch(path)
	if m == nil {
		return nil, "", final("is not hf://ORG/NAME or hf://ORG/NAME@REVISION")
	}
	revision, err := url.PathUnescape(cmp.Or(m[2], "main"))
	if err != nil {
		return nil, "", final("its revision is not readable: " + err.Error())
	}
	endpoint, err := url.Parse(strings.TrimRight(cmp.Or(os.Getenv("HF_ENDPOINT"), "https://huggingface.co"), "/"))
	if err != nil || endpoint.Scheme != "https" && endpoint.Scheme != "http" || endpoint.Host == "" {
		return nil, "", final("HF_ENDPOINT is not the URL of a web server")
	}
	o = &hub{endpoint: endpoint, name: m[1], token: strings.TrimSpace(os.Getenv("HF_TOKEN")),
		places: map[string]*url.URL{}}
	if o.token == "" { // huggingface_hub looks there, too
		file, _ := os.ReadFile(cmp.Or(os.Getenv("HF_TOKEN_PATH"), filepath.Join(HubHome(), "token")))
		o.token = strings.TrimSpace(string(file))
	}
	if strings.ContainsFunc(o.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, "", final("the token of HF_TOKEN or `hf auth login` has spaces or line breaks within: it is no token")
	}
	if o.commit = revision; commitID.MatchString(revision) {
		return o, m[3], nil
	}
	var answer struct {
		SHA string `json:"sha"`
	}
	u := o.endpoint.JoinPath("api/models", o.name, "revision", url.PathEscape(revision))
	if _, err := o.api(c, u, &answer); err != nil {
		return nil, "", err
	}
	if o.commit = answer.SHA; !commitID.MatchString(o.commit) {
		return nil, "", final("the hub answers without a commit for revision " + text.Quote(revision))
	}
	return o, m[3], nil
}

// HubHome is the directory of huggingface_hub: of its downloads and the user's token.
func HubHome() string {
	user, _ := os.UserHomeDir()
	user = cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(user, ".cache"))
	return cmp.Or(os.Getenv("HF_HOME"), filepath.Join(user, "huggingface"))
}

// Offline reports whether HF_HUB_OFFLINE forbids requests to the hub.
func Offline() bool {
	return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(os.Getenv("HF_HUB_OFFLINE")))
}

// path names a file with the commit, so that whoever reads it later finds the same bytes.
func (o *hub) path(file string) string {
	return strings.TrimSuffix("hf://"+o.name+"@"+o.commit+"/"+file, "/")
}

// list lists all files, page by page.
func (o *hub) list(c *Client, _ string) (list []Entry, all bool, err error) {
	data, err := c.kept(o, ".tree", func() ([]byte, error) {
		u := o.endpoint.JoinPath("api/models", o.name, "tree", o.commit)
		u.RawQuery = "recursive=true"
		for read := (pages{}); u != nil && err == nil && len(list) <= maxFiles; {
			if err = read.read(u.String()); err == nil {
				u, err = o.page(c, u, &list)
			}
		}
		if err == nil && u != nil {
			err = final(fmt.Sprintf("lists more than %d files", maxFiles))
		}
		if err != nil {
			return nil, err
		}
		return json.Marshal(list)
	})
	if err == nil {
		list = nil
		err = json.Unmarshal(data, &list)
	}
	return list, true, err
}

var nextPage = regexp.MustCompile(`<([^>]*)>;\s*rel="next"`)

// page adds a page of the listing, and returns the URL of the next; nil for the last one.
func (o *hub) page(c *Client, u *url.URL, list *[]Entry) (*url.URL, error) {
	var page []struct {
		Type string `json:"type"`
		Path string `json:"path"`
		Size int64  `json:"size"`
		OID  string `json:"oid"`
		LFS  struct {
			OID  string `json:"oid"`
			Size int64  `json:"size"`
		} `json:"lfs"`
	}
	header, err := o.api(c, u, &page)
	if err != nil {
		return nil, err
	}
	for _, e := range page {
		if e.Type == "file" && fs.ValidPath(e.Path) && e.Size >= 0 {
			*list = append(*list, Entry{e.Path, e.Size, cmp.Or(e.LFS.OID, e.OID, o.commit)})
		}
	}
	m := nextPage.FindStringSubmatch(header.Get("Link"))
	if m == nil {
		return nil, nil
	}
	next, err := u.Parse(m[1])
	if err != nil || next.Host != u.Host || next.Scheme != u.Scheme || len(page) == 0 {
		return nil, final("the hub's listing goes on at another server, or without end")
	}
	return next, nil
}

// api requests a document of the hub's API.
func (o *hub) api(c *Client, u *url.URL, answer any) (http.Header, error) {
	data, header, err := c.document(Name(u.String()),
		func(ctx context.Context) (*http.Request, error) { return o.request(ctx, u) }, o.explain)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return nil, final("what answers is not the hub: " + text.Line(err.Error()))
	}
	return header, nil
}

// request is a request to the hub, with the token.
func (o *hub) request(ctx context.Context, u *url.URL) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err == nil && o.token != "" && u.Host == o.endpoint.Host {
		r.Header.Set("Authorization", "Bearer "+o.token)
	}
	return r, err
}

// fetch requests a range from where the hub redirected the file's first request to. That place forgets the
// file after some time: then the hub is asked again.
func (o *hub) fetch(ctx context.Context, c *Client, file string, offset, end int64) (*part, error) {
	o.mu.Lock()
	place := o.places[file]
	o.mu.Unlock()
	u := place
	if u == nil {
		u = o.endpoint.JoinPath(o.name, "resolve", o.commit, (&url.URL{Path: file}).EscapedPath())
	}
	r, err := o.request(ctx, u)
	if err != nil {
		return nil, err
	}
	setRange(r, offset, end)
	resp, err := c.do(r, o.explain)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		delete(o.places, file)
		if f, ok := err.(*failure); ok && place != nil && f.final {
			f.final, f.wait = false, 0
		}
		return nil, err
	}
	if last := resp.Request.URL; last.Host != o.endpoint.Host {
		o.places[file] = last
	}
	return readPart(resp, offset, end)
}

// setRange asks for a range of the file as it is, not compressed.
func setRange(r *http.Request, offset, end int64) {
	r.Header.Set("Accept-Encoding", "identity")
	if end >= 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, end-1))
	} else {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
}

// explain is the failure of the hub's answer.
func (o *hub) explain(resp *http.Response) *failure {
	f := explainStatus(resp)
	login := "set HF_TOKEN, or run `hf auth login`"
	if o.token != "" {
		login = "the token of HF_TOKEN or `hf auth login` does not give access: is it valid, and of the right account?"
	}
	f.hint = ""
	page := Name(o.endpoint.JoinPath(o.name).String())
	switch code := resp.Header.Get("X-Error-Code"); {
	case code == "GatedRepo":
		f.cause = "is gated: the hub gives it to accounts that accepted its conditions"
		f.hint = "accept them at " + page + "; " + login
	case code == "RevisionNotFound":
		f.cause, f.is = "the repository has no such revision", fs.ErrNotExist
		f.hint = "give a branch, tag or commit that " + page + " has"
	case code == "EntryNotFound":
		f.cause, f.is = "no such file in the repository at this commit", fs.ErrNotExist
	case code == "RepoNotFound", resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusNotFound:
		f.cause = "the hub has no such repository, or it is private"
		f.hint = "check the name; for a private repository " + login
	case resp.StatusCode == http.StatusForbidden:
		f.cause, f.hint = "the hub forbids access", login
	case resp.StatusCode == http.StatusTooManyRequests:
		f.cause = "the hub limits the number of requests"
		if f.hint = "try again later"; o.token == "" {
			f.hint += "; it allows more with a token: " + login
		}
	}
	return f
}
