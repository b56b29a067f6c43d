package remote

// Objects of stores that speak S3: s3://BUCKET/PREFIX.

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/encoding/httpbinding"
	"github.com/aws/smithy-go/logging"

	"dsmoe/text"
)

// bucket is a bucket of an object store.
type bucket struct {
	name        string
	endpoint    *url.URL // of the bucket
	region      string
	credentials aws.CredentialsProvider // nil makes requests without a signature
	without     error                   // why there are no credentials
	etags       map[string]string       // ETags of the listing, by key
}

// openBucket finds the store and the credentials as Amazon's programs do: in the environment, in the shared
// files of AWS_PROFILE, from the machine. It returns the prefix, too.
func openBucket(c *Client, path string) (o *bucket, prefix string, err error) {
	name, prefix, _ := strings.Cut(strings.TrimPrefix(path, "s3://"), "/")
	if name == "" || strings.ContainsAny(name, "?#@:%\\ ") {
		return nil, "", final("is not s3://BUCKET/PREFIX")
	}
	settings, err := config.LoadDefaultConfig(c.Context, config.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, "", final("the settings of AWS cannot be read: " + text.Line(err.Error()))
	}
	o = &bucket{name: name, region: cmp.Or(settings.Region, "us-east-1"), credentials: settings.Credentials,
		etags: map[string]string{}}
	if o.endpoint, err = o.place(endpointOf(settings)); err != nil {
		return nil, "", err
	}
	if _, o.without = o.credentials.Retrieve(c.Context); o.without != nil {
		o.credentials = nil
	}
	return o, prefix, c.Context.Err()
}

// endpointOf returns the endpoint that the settings name for S3; "" for Amazon's own.
func endpointOf(settings aws.Config) string {
	ctx, own := context.Background(), ""
	for _, source := range settings.ConfigSources {
		if s, ok := source.(interface {
			GetIgnoreConfiguredEndpoints(context.Context) (bool, bool, error)
		}); ok {
			if ignore, _, _ := s.GetIgnoreConfiguredEndpoints(ctx); ignore {
				return ""
			}
		}
		if s, ok := source.(interface {
			GetServiceBaseEndpoint(context.Context, string) (string, bool, error)
		}); ok && own == "" {
			own, _, _ = s.GetServiceBaseEndpoint(ctx, "S3")
		}
	}
	return cmp.Or(own, aws.ToString(settings.BaseEndpoint))
}

// place returns the URL of the bucket. Amazon has a host for each bucket; other stores, and names with a dot,
// which no certificate covers, have it in the path.
func (o *bucket) place(endpoint string) (*url.URL, error) {
	host, below := "amazonaws.com", "/"+o.name
	if strings.HasPrefix(o.region, "cn-") {
		host += ".cn"
	}
	host = "s3." + o.region + "." + host
	if endpoint == "" && !strings.Contains(o.name, ".") {
		host, below = o.name+"."+host, ""
	}
	u, err := url.Parse(strings.TrimRight(cmp.Or(endpoint, "https://"+host), "/") + below)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, final("the endpoint of S3 in AWS_ENDPOINT_URL or the profile is not the URL of a server")
	}
	return u, nil
}

func (o *bucket) path(file string) string { return strings.TrimSuffix("s3://"+o.name+"/"+file, "/") }

// list lists the objects with a prefix, page by page.
func (o *bucket) list(c *Client, prefix string) (list []Entry, all bool, err error) {
	query := url.Values{"list-type": {"2"}, "prefix": {prefix}}
	read := pages{}
	for more := true; more; {
		if err := read.read(query.Get("continuation-token")); err != nil {
			return nil, false, err
		}
		data, _, err := c.document(o.path(""),
			func(ctx context.Context) (*http.Request, error) { return o.request(ctx, "", query) }, o.explain)
		if err != nil {
			return nil, false, err
		}
		var page struct {
			XMLName  xml.Name `xml:"ListBucketResult"`
			Contents []struct {
				Key, ETag string
				Size      int64
			}
			IsTruncated           bool
			NextContinuationToken string
		}
		if err := xml.Unmarshal(data, &page); err != nil {
			return nil, false, final("what answers does not speak S3: " + text.Line(err.Error()))
		}
		for _, e := range page.Contents {
			if fs.ValidPath(e.Key) && e.Size >= 0 {
				tag := strings.Trim(e.ETag, `"`)
				list = append(list, Entry{e.Key, e.Size, tag})
				o.etags[e.Key] = tag
			}
		}
		if more = page.IsTruncated; more && (page.NextContinuationToken == "" || len(page.Contents) == 0) {
			return nil, false, final("the store's listing goes on without end")
		}
		query.Set("continuation-token", page.NextContinuationToken)
		if len(list) > maxFiles {
			return nil, false, final(fmt.Sprintf("lists more than %d files", maxFiles))
		}
	}
	if len(list) == 0 {
		return nil, false, &failure{cause: "the bucket has no object with this prefix", is: fs.ErrNotExist, final: true}
	}
	return list, true, nil
}

// noBytes is the hash of a request's empty body.
var noBytes = func() string {
	hash := sha256.Sum256(nil)
	return hex.EncodeToString(hash[:])
}()

// request is a request for an object, or for the bucket, with a signature.
func (o *bucket) request(ctx context.Context, key string, query url.Values) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url(key, query), nil)
	if err != nil {
		return nil, err
	}
	return r, o.sign(r, noBytes)
}

// url is the URL of an object, or of the bucket.
func (o *bucket) url(key string, query url.Values) string {
	u := *o.endpoint
	u.Path += "/" + key
	u.RawPath = httpbinding.EscapePath(u.Path, false) // as signatures want it
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return u.String()
}

// sign signs a request with a body of this hash. No signature has to cover the headers Range and If-Match,
// which are set afterwards.
func (o *bucket) sign(r *http.Request, hash string) error {
	if o.credentials == nil {
		return nil
	}
	credentials, err := o.credentials.Retrieve(r.Context())
	if err != nil {
		return &failure{cause: "the credentials cannot be renewed: " + withoutSecrets(text.Line(err.Error())), wait: -1}
	}
	r.Header.Set("X-Amz-Content-Sha256", hash)
	return v4.NewSigner(func(s *v4.SignerOptions) { s.DisableURIPathEscaping = true }).
		SignHTTP(r.Context(), credentials, r, hash, "s3", o.region, time.Now())
}

// fetch requests a range of an object, which must be the one that was listed.
func (o *bucket) fetch(ctx context.Context, c *Client, file string, offset, end int64) (*part, error) {
	r, err := o.request(ctx, file, nil)
	if err != nil {
		return nil, err
	}
	setRange(r, offset, end)
	tag := o.etags[file]
	if tag != "" {
		r.Header.Set("If-Match", `"`+tag+`"`)
	}
	resp, err := c.do(r, o.explain)
	if err != nil {
		return nil, err
	}
	if now := strings.Trim(resp.Header.Get("ETag"), `"`); tag != "" && now != tag {
		resp.Body.Close()
		return nil, replaced()
	}
	return readPart(resp, offset, end)
}

func replaced() *failure {
	return final("was replaced since the bucket was listed: its ETag is another")
}

// explain is the failure of the store's answer.
func (o *bucket) explain(resp *http.Response) *failure {
	f := explainStatus(resp)
	var answer struct{ Code, Region string }
	if xml.NewDecoder(resp.Body).Decode(&answer) == nil && answer.Code != "" {
		f.cause = "the store answers " + text.Quote(resp.Status) + ", " + text.Quote(answer.Code)
	}
	region := cmp.Or(resp.Header.Get("X-Amz-Bucket-Region"), answer.Region)
	f.hint = ""
	switch {
	case resp.StatusCode == http.StatusPreconditionFailed:
		return replaced()
	case region != "" && region != o.region:
		f.cause, f.hint = "the bucket is in region "+text.Quote(region), "set AWS_REGION to that"
	case answer.Code == "NoSuchBucket":
		f.cause, f.is = "the store has no such bucket", fs.ErrNotExist
		f.hint = "check the name, and AWS_ENDPOINT_URL for a store that is not Amazon's"
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		f.hint = "the credentials do not give access: check AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
		if o.credentials == nil {
			f.hint = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: " +
				withoutSecrets(text.Line(o.without.Error()))
		}
	}
	return f
}
